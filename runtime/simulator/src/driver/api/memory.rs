//! Plain allocations, on GPUs and pinned on the host.

use super::{answer, enqueue, ensure_not_captured, ensure_permitted, here, put, stream};
use crate::driver::queue::Step;
use crate::driver::{Code, Result, memory::TOTAL_BYTES};
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use std::ffi::{c_uint, c_void};

pub(super) unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    answer(|| {
        let here = here()?;
        let left = here.host.call()?.memory.free_bytes(here.device);
        // SAFETY: by the caller.
        unsafe { put(free, left as usize).and(put(total, TOTAL_BYTES as usize)) }
    })
}

pub(super) unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> Code {
    answer(|| {
        if bytes == 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        ensure_permitted(&here()?.host)?;
        // SAFETY: by the caller.
        unsafe { put(address, allocate(bytes)?) }
    })
}

fn allocate(bytes: usize) -> Result<u64> {
    let here = here()?;
    here.host.lock().ensure_works(here.device)?;
    let device = here.device;
    here.host
        .ask(move |world, state| state.memory.allocate(world, device, bytes as u64))
}

pub(super) unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> Code {
    answer(|| {
        let here = here()?;
        ensure_permitted(&here.host)?;
        // Freeing waits for the GPU; after a failure there is nothing to wait for.
        let end = here.host.call()?.queues.end(here.device);
        let waited = here.host.wait(here.device, end);
        here.host
            .ask(move |world, state| state.memory.free(world, address))?;
        waited
    })
}

/// The memory is there at once, earlier than a stream could ask for it.
pub(super) unsafe extern "C" fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    bytes: usize,
    on: CUstream,
) -> Code {
    answer(|| {
        let (on, id) = stream(on)?;
        ensure_not_captured(&on, id)?;
        // SAFETY: by the caller.
        unsafe { put(address, allocate(bytes)?) }
    })
}

pub(super) unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, on: CUstream) -> Code {
    answer(|| {
        let (on, id) = stream(on)?;
        if !on.host.call()?.memory.is_allocation(address) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        match enqueue(&on, id, Step::Free(address)) {
            // What the failed kernel used goes all the same.
            Err(Code::CUDA_ERROR_LAUNCH_FAILED) => on
                .host
                .ask(move |world, state| state.memory.free(world, address))
                .and(Err(Code::CUDA_ERROR_LAUNCH_FAILED)),
            enqueued => enqueued.map(drop),
        }
    })
}

pub(super) unsafe extern "C" fn cuMemHostAlloc(
    to: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> Code {
    answer(|| {
        let here = here()?;
        let address = here
            .host
            .ask(move |world, state| state.memory.pin(world, bytes))?;
        // SAFETY: by the caller.
        unsafe { put(to, address as *mut c_void) }
    })
}

pub(super) unsafe extern "C" fn cuMemFreeHost(memory: *mut c_void) -> Code {
    answer(|| {
        let (here, address) = (here()?, memory as u64);
        ensure_permitted(&here.host)?;
        here.host
            .ask(move |world, state| state.memory.unpin(world, address))
    })
}

/// GPUs use the host's addresses.
pub(super) unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    address: *mut CUdeviceptr,
    memory: *mut c_void,
    _flags: c_uint,
) -> Code {
    use crate::driver::memory::Place;
    answer(|| {
        let here = here()?;
        if here.host.call()?.memory.place(memory as u64, 1)? != Place::Pinned {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: by the caller.
        unsafe { put(address, memory as u64) }
    })
}
