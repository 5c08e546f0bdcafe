//! Contexts. Each GPU has a primary context and no other.

use super::call::{CURRENT, context_of, current_gpu, driver_call, ordinal_of, write_out};
use crate::driver::host::DeviceState;
use crate::driver::registry::{close_unused, device};
use crate::driver::result::Code;
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

pub(super) unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut CUcontext,
    dev: CUdevice,
) -> Code {
    driver_call(|| {
        let (host, device) = device(dev)?;
        let host = host.ok_or(Code::CUDA_ERROR_DEVICE_UNAVAILABLE)?;
        let mut state = host.call()?;
        let gpu = state.devices.get_mut(device as usize);
        gpu.ok_or(Code::CUDA_ERROR_DEVICE_UNAVAILABLE)?.retains += 1;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(context, context_of(dev)) }
    })
}

pub(super) unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> Code {
    driver_call(|| {
        let (host, device) = device(dev)?;
        let host = host.ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)?;
        let mut state = host.call()?;
        let gpu = state.devices.get_mut(device as usize);
        let gpu = gpu
            .filter(|gpu| gpu.retains > 0)
            .ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)?;
        gpu.retains -= 1;
        if gpu.retains == 0 {
            *gpu = DeviceState::default();
            state.streams.reset(device);
            state.events.retain(|_, event| event.device != device);
        }
        drop(state);
        host.notify_waiters();
        close_unused(&host);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> Code {
    driver_call(|| {
        let ordinal = (!context.is_null()).then(|| ordinal_of(context));
        CURRENT.set(ordinal.transpose()?);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> Code {
    let current = CURRENT.get().map_or(null_mut(), context_of);
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { write_out(context, current) })
}

pub(super) unsafe extern "C" fn cuCtxGetDevice(dev: *mut CUdevice) -> Code {
    driver_call(|| {
        let ordinal = CURRENT.get().ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(dev, ordinal) }
    })
}

/// Ignores the flags, which choose how threads wait. Here they always sleep.
pub(super) unsafe extern "C" fn cuCtxSetFlags(_flags: c_uint) -> Code {
    driver_call(|| current_gpu().map(drop))
}

pub(super) unsafe extern "C" fn cuCtxSynchronize() -> Code {
    driver_call(|| {
        let gpu = current_gpu()?;
        let mut state = gpu.host.call_on(gpu.device)?;
        let captured = state.graphs.capturing_streams.keys().copied();
        let captured: Vec<u64> = captured
            .filter(|stream| {
                let id = state.streams.find(*stream);
                id.is_ok_and(|id| id.device == gpu.device)
            })
            .collect();
        if !captured.is_empty() {
            for stream in captured {
                state.graphs.invalidate(stream);
            }
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let end = state.streams.end(gpu.device);
        drop(state);
        gpu.host.wait(gpu.device, end)
    })
}

/// Returns 0 for both limits, since all streams have one priority.
pub(super) unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> Code {
    driver_call(|| {
        current_gpu()?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(least, 0).and(write_out(greatest, 0)) }
    })
}
