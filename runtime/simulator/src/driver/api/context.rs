//! Contexts: a primary one for each GPU.

use super::{CURRENT, answer, context_of, here, ordinal_of, put};
use crate::driver::Code;
use crate::driver::host::Gpu;
use crate::driver::registry::{close_unused, device};
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

pub(super) unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut CUcontext,
    dev: CUdevice,
) -> Code {
    answer(|| {
        let (host, device) = device(dev)?;
        let host = host.ok_or(Code::CUDA_ERROR_DEVICE_UNAVAILABLE)?;
        let mut state = host.call()?;
        let gpu = state.devices.get_mut(device as usize);
        gpu.ok_or(Code::CUDA_ERROR_DEVICE_UNAVAILABLE)?.retains += 1;
        // SAFETY: by the caller.
        unsafe { put(context, context_of(dev)) }
    })
}

pub(super) unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> Code {
    answer(|| {
        let (host, device) = device(dev)?;
        let host = host.ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)?;
        let mut state = host.call()?;
        let gpu = state.devices.get_mut(device as usize);
        let gpu = gpu
            .filter(|gpu| gpu.retains > 0)
            .ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)?;
        gpu.retains -= 1;
        if gpu.retains == 0 {
            *gpu = Gpu::default();
            state.queues.reset(device);
            state.events.retain(|_, event| event.device != device);
        }
        drop(state);
        host.announce();
        close_unused(&host);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> Code {
    answer(|| {
        let ordinal = (!context.is_null()).then(|| ordinal_of(context));
        CURRENT.set(ordinal.transpose()?);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> Code {
    let current = CURRENT.get().map_or(null_mut(), context_of);
    // SAFETY: by the caller.
    answer(|| unsafe { put(context, current) })
}

pub(super) unsafe extern "C" fn cuCtxGetDevice(dev: *mut CUdevice) -> Code {
    answer(|| {
        let ordinal = CURRENT.get().ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)?;
        // SAFETY: by the caller.
        unsafe { put(dev, ordinal) }
    })
}

/// Flags say how threads wait; here they always sleep.
pub(super) unsafe extern "C" fn cuCtxSetFlags(_flags: c_uint) -> Code {
    answer(|| here().map(drop))
}

pub(super) unsafe extern "C" fn cuCtxSynchronize() -> Code {
    answer(|| {
        let here = here()?;
        let mut state = here.host.call_on(here.device)?;
        let captured = state.graphs.branches.keys().copied();
        let captured: Vec<u64> = captured
            .filter(|stream| {
                let id = state.queues.find(*stream);
                id.is_ok_and(|id| id.device == here.device)
            })
            .collect();
        if !captured.is_empty() {
            for stream in captured {
                state.graphs.invalidate(stream);
            }
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let end = state.queues.end(here.device);
        drop(state);
        here.host.wait(here.device, end)
    })
}

/// All streams have one priority.
pub(super) unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> Code {
    answer(|| {
        here()?;
        // SAFETY: by the caller.
        unsafe { put(least, 0).and(put(greatest, 0)) }
    })
}
