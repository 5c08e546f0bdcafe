//! [`SymmetricSlice`]: a tensor in the symmetric memory of a communicator.

use crate::deadlines::DRAIN_MARGIN;
use crate::driver::{self, Event};
use crate::error::Error;
use crate::heap::Block;
use crate::reaper::{self, GpuUse, Retired};
use crate::shared::Shared;
use crate::tensors::Tensors;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut,
    DeviceSlice, SyncOnDrop,
};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

/// A tensor in the symmetric memory of a communicator, created by [`Communicator::alloc`](crate::Communicator::alloc). The
/// tensor has one offset on all ranks, so other ranks can read and write it.
///
/// A `SymmetricSlice` is used like a [`CudaSlice`]: as an operand, and for copies by the methods of [`CudaStream`]. cudarc
/// orders uses on different streams as it does for a `CudaSlice`. [`as_view`](Self::as_view) and
/// [`as_view_mut`](Self::as_view_mut) return views, whose methods return parts of the tensor.
///
/// Dropping the slice is not collective, and ranks may drop it at different times. The drop waits until the work that uses the
/// tensor has ended, or until the deadline. The space is used again by the next operator or tensor after all ranks have dropped
/// the slice. The memory stays mapped as long as the tensor exists, even if the communicator is dropped earlier.
pub struct SymmetricSlice<T: 'static> {
    /// The memory, which is taken when the tensor is dropped.
    memory: ManuallyDrop<Memory<T>>,
    /// The time that dropping the tensor may take.
    drop_limit: Duration,
}

/// The memory of a tensor. cudarc must not free the slice, which is a part of the block.
pub(crate) struct Memory<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    address: u64,
    tensors: Arc<Tensors>,
    // The block is dropped last, since another tensor or operator may use its memory after that.
    _block: Block,
}

impl<T> Memory<T> {
    /// Makes a zeroed block with this many elements the memory of a tensor.
    pub fn new(
        shared: &Shared,
        block: Block,
        stream: &Arc<CudaStream>,
        elems: usize,
    ) -> Result<Self, Error> {
        // cudarc creates events for the slice, and panics where the driver refuses them.
        driver::named("cuEventCreate", shared.ctx.new_event(None))?;
        let (address, tensors) = (block.own(shared), shared.tensors.clone());
        tensors.insert(address, block.tensor());
        // SAFETY: the block is mapped, has this many elements, and is zero, which is a value of every `Element`.
        let slice = unsafe { stream.upgrade_device_ptr(address, elems) };
        Ok(Self {
            slice: ManuallyDrop::new(slice),
            address,
            tensors,
            _block: block,
        })
    }
}

impl<T> SymmetricSlice<T> {
    pub(crate) fn new(shared: &Shared, memory: Memory<T>) -> Self {
        Self {
            memory: ManuallyDrop::new(memory),
            drop_limit: shared.gpu_timeout() + DRAIN_MARGIN,
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.slice.len()
    }

    /// Returns whether the tensor has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the stream for which the tensor was allocated.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        self.memory.slice.stream()
    }

    /// Returns the context of the tensor's GPU.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        self.stream().context()
    }

    /// Returns a view of all elements.
    #[must_use]
    pub fn as_view(&self) -> CudaView<'_, T> {
        self.memory.slice.as_view()
    }

    /// Returns a mutable view of all elements.
    #[must_use]
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.memory.slice.as_view_mut()
    }
}

impl<T> DeviceSlice<T> for SymmetricSlice<T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream()
    }
}

impl<T> DevicePtr<T> for SymmetricSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.memory.slice.device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for SymmetricSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.memory.slice.device_ptr_mut(stream)
    }
}

impl<T> std::fmt::Debug for SymmetricSlice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gpu = self.context().ordinal();
        write!(f, "SymmetricSlice({} elements, GPU {gpu})", self.len())
    }
}

impl<T: 'static> Drop for SymmetricSlice<T> {
    fn drop(&mut self) {
        // SAFETY: the memory is not used after this, since its owner is being dropped.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        let retired = RetiredSlice { memory, end: None };
        reaper::retire(Box::new(retired), self.drop_limit);
    }
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        self.tensors.remove(self.address);
        // SAFETY: the slice is not used after this. `leak` drops its events and leaves the memory to the block.
        unsafe { ManuallyDrop::take(&mut self.slice) }.leak();
    }
}

/// The memory of a dropped tensor, until the GPU does not use it any more.
struct RetiredSlice<T> {
    memory: Memory<T>,
    /// The end of the work that uses the tensor.
    end: Option<Event>,
}

impl<T> Retired for RetiredSlice<T> {
    fn name(&self) -> String {
        format!("a tensor of {} elements", self.memory.slice.len())
    }

    fn is_unused(&mut self) -> Result<GpuUse, Error> {
        let stream = self.memory.slice.stream().clone();
        driver::bind(stream.context())?;
        // SAFETY: the stream is alive.
        if unsafe { driver::is_capturing(stream.cu_stream())? } {
            // A stream that is being captured cannot wait for events from outside of the capture.
            return Ok(GpuUse::Capturing);
        }
        let end = match self.end.take() {
            Some(end) => end,
            None => {
                // The slice's stream waits for its uses on other streams, as when cudarc frees a slice.
                drop(self.memory.slice.device_ptr_mut(&stream));
                let end = Event::new(stream.context())?;
                // SAFETY: the stream is alive, and belongs to the event's context.
                unsafe { end.record(stream.cu_stream())? };
                end
            }
        };
        let is_over = end.is_over()?;
        self.end = Some(end);
        Ok(if is_over {
            GpuUse::Unused
        } else {
            GpuUse::Running
        })
    }
}

#[cfg(all(test, feature = "simulator"))]
mod tests;
