//! Plain allocations on GPUs, and pinned memory of the host.

use super::call::{
    current_gpu, driver_call, enqueue, ensure_not_captured, ensure_permitted, stream, write_out,
};
use crate::driver::address_space::TOTAL_BYTES;
use crate::driver::result::{Code, Result};
use crate::driver::stream::StreamOp;
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use std::ffi::{c_uint, c_void};

pub(super) unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    driver_call(|| {
        let gpu = current_gpu()?;
        let left = gpu.host.call()?.memory.free_bytes(gpu.device);
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(free, left as usize).and(write_out(total, TOTAL_BYTES as usize)) }
    })
}

pub(super) unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> Code {
    driver_call(|| {
        if bytes == 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        ensure_permitted(&current_gpu()?.host)?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(address, allocate(bytes)?) }
    })
}

fn allocate(bytes: usize) -> Result<u64> {
    let gpu = current_gpu()?;
    gpu.host.lock().ensure_works(gpu.device)?;
    let device = gpu.device;
    gpu.host
        .run_on_engine(move |world, state| state.memory.allocate(world, device, bytes as u64))
}

pub(super) unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> Code {
    driver_call(|| {
        let gpu = current_gpu()?;
        ensure_permitted(&gpu.host)?;
        // Freeing waits for the GPU. After a failure the wait returns at once, and the memory is freed nevertheless.
        let end = gpu.host.call()?.streams.end(gpu.device);
        let waited = gpu.host.wait(gpu.device, end);
        gpu.host
            .run_on_engine(move |world, state| state.memory.free(world, address))?;
        waited
    })
}

/// Allocates at once, before the stream reaches this operation.
pub(super) unsafe extern "C" fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    bytes: usize,
    on: CUstream,
) -> Code {
    driver_call(|| {
        let (on, id) = stream(on)?;
        ensure_not_captured(&on, id)?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(address, allocate(bytes)?) }
    })
}

pub(super) unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, on: CUstream) -> Code {
    driver_call(|| {
        let (on, id) = stream(on)?;
        if !on.host.call()?.memory.is_allocation(address) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        match enqueue(&on, id, StreamOp::Free(address)) {
            // The memory of a failed kernel is freed too.
            Err(Code::CUDA_ERROR_LAUNCH_FAILED) => on
                .host
                .run_on_engine(move |world, state| state.memory.free(world, address))
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
    driver_call(|| {
        let gpu = current_gpu()?;
        let address = gpu
            .host
            .run_on_engine(move |world, state| state.memory.pin(world, bytes))?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(to, address as *mut c_void) }
    })
}

pub(super) unsafe extern "C" fn cuMemFreeHost(memory: *mut c_void) -> Code {
    driver_call(|| {
        let (gpu, address) = (current_gpu()?, memory as u64);
        ensure_permitted(&gpu.host)?;
        gpu.host
            .run_on_engine(move |world, state| state.memory.unpin(world, address))
    })
}

/// Returns the same address, since GPUs use the host's addresses for pinned memory.
pub(super) unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    address: *mut CUdeviceptr,
    memory: *mut c_void,
    _flags: c_uint,
) -> Code {
    use crate::driver::address_space::MemorySpace;
    driver_call(|| {
        let gpu = current_gpu()?;
        if gpu.host.call()?.memory.space_of(memory as u64, 1)? != MemorySpace::PinnedHost {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(address, memory as u64) }
    })
}
