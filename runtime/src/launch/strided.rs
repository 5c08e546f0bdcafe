//! [`Strided`]: rows of a wider matrix as an operand.

use crate::launch::slice_types::{Readable, Writable, sealed};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use std::sync::Arc;

/// Some columns of a wider matrix, as an operand: row `i` begins at element `offset + i · stride` of a slice.
///
/// The matrix has the shape of the operand, with `cols` columns that lie one after the other and rows that are `stride` elements
/// apart. `offset` and `stride` are multiples of 8 elements, or of 16 elements of one byte. An operand with one column, such as
/// `lse`, cannot be strided. A kernel writes only the columns of the operand.
///
/// ```no_run
/// # use mkernel::{Error, Operator, cudarc::driver::{CudaSlice, CudaStream}, half::bf16, Operand, operands::Strided};
/// # use std::sync::Arc;
/// # type Slice = CudaSlice<bf16>;
/// # fn f(operator: &Operator, stream: &Arc<CudaStream>, wide: &Slice, b: &Slice, c: &mut Slice) -> Result<(), Error> {
/// // Columns 512 to 1023 of a matrix of 1536 columns.
/// let a = Strided { slice: wide, offset: 512, stride: 1536 };
/// operator.launch(stream, &a, b, c)
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Strided<S> {
    /// The matrix: `&slice` of an operand that is read, `&mut slice` of an operand that is written.
    pub slice: S,
    /// The index of the first element.
    pub offset: usize,
    /// The distance from the beginning of a row to the beginning of the next row, in elements.
    pub stride: usize,
}

/// The address of the element `offset` of memory at `address`.
const fn address_of<T>(address: CUdeviceptr, offset: usize) -> CUdeviceptr {
    address.wrapping_add((offset as u64).wrapping_mul(size_of::<T>() as u64))
}

macro_rules! strided {
    ($reference:ty, $Bound:ident) => {
        impl<T, S: $Bound<T> + ?Sized> DeviceSlice<T> for Strided<$reference> {
            /// The number of elements from the first element on.
            fn len(&self) -> usize {
                self.slice.len().saturating_sub(self.offset)
            }

            fn stream(&self) -> &Arc<CudaStream> {
                self.slice.stream()
            }
        }

        impl<T, S: $Bound<T> + ?Sized> sealed::Slice<T> for Strided<$reference> {
            fn row_stride(&self) -> Option<u64> {
                Some(self.stride as u64)
            }
        }
    };
}
strided!(&S, Readable);
strided!(&mut S, Writable);

impl<T, S: Readable<T> + ?Sized> DevicePtr<T> for Strided<&S> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let (address, guard) = self.slice.device_ptr(stream);
        (address_of::<T>(address, self.offset), guard)
    }
}

impl<T, S: Writable<T> + ?Sized> DevicePtrMut<T> for Strided<&mut S> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let (address, guard) = self.slice.device_ptr_mut(stream);
        (address_of::<T>(address, self.offset), guard)
    }
}

impl<T, S: Readable<T> + ?Sized> Readable<T> for Strided<&S> {}
impl<T, S: Writable<T> + ?Sized> Writable<T> for Strided<&mut S> {}
