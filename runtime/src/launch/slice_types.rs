//! [`Element`], [`Readable`] and [`Writable`]: the types of slices that calls take as operands.

use crate::launch::raw_slice::RawSlice;
use crate::symmetric_slice::SymmetricSlice;
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DevicePtr, DevicePtrMut};
use float8::F8E4M3;
use half::{bf16, f16};
use mkernel_spec::Dtype;

/// An element type of operands.
pub trait Element: sealed::Element + 'static {
    /// The name of the type in a declaration.
    const DTYPE: Dtype;
}

pub(crate) mod sealed {
    pub trait Element {}
    pub trait Slice<T> {
        /// The distance from one row to the next, in elements; `None` if rows are contiguous.
        fn row_stride(&self) -> Option<u64> {
            None
        }
    }
}

macro_rules! elements {
    ($($element:ty: $dtype:ident),+) => {$(
        impl sealed::Element for $element {}
        impl Element for $element {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )+};
}
elements!(bf16: Bf16, f16: Fp16, F8E4M3: E4m3, f32: Fp32, i32: Int32);

/// Memory of a GPU that a kernel can read: slices and views of cudarc, [`SymmetricSlice`], [`RawSlice`] and
/// [`Strided`](crate::operands::Strided).
///
/// No other type can implement this trait: a kernel's accesses are sound only if the address and the length of the slice are
/// right.
///
/// ```compile_fail,E0277
/// # use mkernel::{Operator, cudarc::driver::{CudaStream, DevicePtr}, half::bf16, spec::abi::Operand};
/// # use std::sync::Arc;
/// fn read<S: DevicePtr<bf16>>(operator: &Operator, stream: &Arc<CudaStream>, any: &S) {
///     let _ = operator.call(stream).read(Operand::A, any);
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not device memory of `{T}` elements",
    label = "this operand is read as `{T}`",
    note = "pass a `CudaSlice<{T}>`, `CudaView<{T}>` or `CudaViewMut<{T}>` of cudarc"
)]
pub trait Readable<T>: DevicePtr<T> + sealed::Slice<T> {}

/// Memory of a GPU that a kernel can write. See [`Readable`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not device memory of `{T}` elements that can be written",
    label = "this operand is written as `{T}`",
    note = "pass a `CudaSlice<{T}>` or `CudaViewMut<{T}>` of cudarc"
)]
pub trait Writable<T>: DevicePtrMut<T> + sealed::Slice<T> {}

impl<T> sealed::Slice<T> for CudaSlice<T> {}
impl<T> sealed::Slice<T> for CudaView<'_, T> {}
impl<T> sealed::Slice<T> for CudaViewMut<'_, T> {}
impl<T> sealed::Slice<T> for RawSlice<T> {}
impl<T> sealed::Slice<T> for SymmetricSlice<T> {}
impl<T> Readable<T> for CudaSlice<T> {}
impl<T> Readable<T> for CudaView<'_, T> {}
impl<T> Readable<T> for CudaViewMut<'_, T> {}
impl<T> Readable<T> for RawSlice<T> {}
impl<T> Readable<T> for SymmetricSlice<T> {}
impl<T> Writable<T> for CudaSlice<T> {}
impl<T> Writable<T> for CudaViewMut<'_, T> {}
impl<T> Writable<T> for RawSlice<T> {}
impl<T> Writable<T> for SymmetricSlice<T> {}
