//! [`RawSlice`]: a slice of memory that cudarc does not own.

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use std::marker::PhantomData;
use std::sync::Arc;

/// A contiguous slice of a GPU's memory by its address, for operands that another library has allocated. Dropping a `RawSlice`
/// frees nothing.
///
/// ```no_run
/// # use mkernel::{Error, Operator, cudarc::driver::CudaStream, half::bf16, Operand, operands::RawSlice};
/// # use std::sync::Arc;
/// # fn f(operator: &Operator, stream: &Arc<CudaStream>, (x, y): (u64, u64), elems: usize) -> Result<(), Error> {
/// // SAFETY: the library that has allocated x and y keeps them, and uses them on this stream only.
/// let (x, mut y) = unsafe { (RawSlice::<bf16>::new(stream, x, elems), RawSlice::<bf16>::new(stream, y, elems)) };
/// operator.call(stream).read(Operand::X, &x).write(Operand::Y, &mut y).launch()
/// # }
/// ```
#[derive(Debug)]
pub struct RawSlice<T> {
    stream: Arc<CudaStream>,
    address: CUdeviceptr,
    elems: usize,
    elements: PhantomData<*mut T>,
}

impl<T> RawSlice<T> {
    /// Returns the slice of `elems` elements at `address`, in memory of the GPU of `stream`.
    ///
    /// # Safety
    /// The memory must stay allocated until all calls that get the slice have ended, including replays of graphs. Only the
    /// caller orders these calls with other work on the memory: no other work may write the memory while a call reads it, or
    /// access the memory while a call writes it.
    #[must_use]
    pub unsafe fn new(stream: &Arc<CudaStream>, address: CUdeviceptr, elems: usize) -> Self {
        Self {
            stream: stream.clone(),
            address,
            elems,
            elements: PhantomData,
        }
    }
}

impl<T> DeviceSlice<T> for RawSlice<T> {
    fn len(&self) -> usize {
        self.elems
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T> DevicePtr<T> for RawSlice<T> {
    fn device_ptr<'a>(&'a self, _: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, SyncOnDrop::Record(None))
    }
}

impl<T> DevicePtrMut<T> for RawSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, _: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, SyncOnDrop::Record(None))
    }
}
