//! Streams, and capturing them.

use super::{answer, ensure_not_captured, here, put, stream};
use crate::driver::host::Capture;
use crate::driver::queue::StreamId;
use crate::driver::registry::new_handle;
use crate::driver::{Code, Result};
use cudarc::driver::sys::{
    CUgraph, CUstream, CUstream_flags, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

pub(super) unsafe extern "C" fn cuStreamCreate(to: *mut CUstream, flags: c_uint) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { put(to, create(flags)?) })
}

pub(super) unsafe extern "C" fn cuStreamCreateWithPriority(
    to: *mut CUstream,
    flags: c_uint,
    _priority: c_int,
) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { put(to, create(flags)?) })
}

fn create(flags: c_uint) -> Result<CUstream> {
    let here = here()?;
    let is_blocking = flags & CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint == 0;
    let id = StreamId {
        device: here.device,
        handle: new_handle(&here.host),
    };
    here.host.call_on(here.device)?.queues.add(id, is_blocking);
    Ok(id.handle as CUstream)
}

/// Work that is still in the stream is done before it goes.
pub(super) unsafe extern "C" fn cuStreamDestroy_v2(on: CUstream) -> Code {
    answer(|| {
        let (here, id) = stream(on)?;
        if id.handle == 0 {
            return Err(Code::CUDA_ERROR_INVALID_HANDLE);
        }
        let mut state = here.host.call()?;
        state.captures.remove(&id.handle);
        state.queues.destroy(id);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuStreamSynchronize(on: CUstream) -> Code {
    answer(|| {
        let (here, id) = stream(on)?;
        ensure_not_captured(&here, id)?;
        let point = here.host.call_on(id.device)?.queues.point(id);
        here.host.wait(id.device, point)
    })
}

pub(super) unsafe extern "C" fn cuStreamQuery(on: CUstream) -> Code {
    answer(|| {
        let (here, id) = stream(on)?;
        ensure_not_captured(&here, id)?;
        let point = here.host.lock().queues.point(id);
        here.host.poll(id.device, point)
    })
}

pub(super) unsafe extern "C" fn cuStreamIsCapturing(
    on: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> Code {
    answer(|| {
        let (here, id) = stream(on)?;
        let status_now = match here.host.call()?.captures.get(&id.handle) {
            None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(Capture {
                is_invalid: false, ..
            }) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
            Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        };
        // SAFETY: by the caller.
        unsafe { put(status, status_now) }
    })
}

pub(super) unsafe extern "C" fn cuStreamBeginCapture_v2(
    on: CUstream,
    _mode: CUstreamCaptureMode,
) -> Code {
    answer(|| {
        let (here, id) = stream(on)?;
        if id.handle == 0 {
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut state = here.host.call_on(id.device)?;
        if state.captures.contains_key(&id.handle) {
            return Err(Code::CUDA_ERROR_ILLEGAL_STATE);
        }
        state.captures.insert(id.handle, Capture::default());
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuStreamEndCapture(on: CUstream, graph: *mut CUgraph) -> Code {
    answer(|| {
        let (here, id) = stream(on)?;
        let mut state = here.host.call()?;
        let capture = state.captures.remove(&id.handle);
        let capture = capture.ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.is_invalid {
            // SAFETY: by the caller.
            unsafe { put(graph, null_mut())? };
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let handle = new_handle(&here.host);
        state.graphs.insert(handle, capture.steps);
        // SAFETY: by the caller.
        unsafe { put(graph, handle as CUgraph) }
    })
}

/// No call is forbidden because another thread captures, so the mode changes nothing.
pub(super) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(
    mode: *mut CUstreamCaptureMode,
) -> Code {
    thread_local! {
        static MODE: Cell<CUstreamCaptureMode> =
            const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
    }
    answer(|| {
        // SAFETY: by the caller.
        let mode = unsafe { mode.as_mut() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        *mode = MODE.replace(*mode);
        Ok(())
    })
}
