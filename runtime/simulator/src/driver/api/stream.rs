//! Streams and their captures.

use super::call::{
    current_gpu, driver_call, enqueue, ensure_not_captured, ensure_permitted, stream, write_out,
};
use crate::driver::callback::call_back;
use crate::driver::graph::{CAPTURE_MODE, Capture};
use crate::driver::registry::new_handle;
use crate::driver::result::{Code, Result};
use crate::driver::stream::StreamOp;
use crate::driver::streams::StreamId;
use crate::driver::{HostFunction, Work};
use cudarc::driver::sys::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUhostFn, CUstream, CUstream_flags, CUstreamCaptureMode,
    CUstreamCaptureStatus, CUstreamUpdateCaptureDependencies_flags as UpdateFlags, cuuint64_t,
};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null;
use std::sync::Arc;

pub(super) unsafe extern "C" fn cuStreamCreate(to: *mut CUstream, flags: c_uint) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { write_out(to, create(flags)?) })
}

pub(super) unsafe extern "C" fn cuStreamCreateWithPriority(
    to: *mut CUstream,
    flags: c_uint,
    _priority: c_int,
) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { write_out(to, create(flags)?) })
}

fn create(flags: c_uint) -> Result<CUstream> {
    let gpu = current_gpu()?;
    let is_blocking = flags & CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint == 0;
    let id = StreamId {
        device: gpu.device,
        handle: new_handle(&gpu.host),
    };
    gpu.host.call_on(gpu.device)?.streams.add(id, is_blocking);
    Ok(id.handle as CUstream)
}

/// Removes the stream after its remaining operations have ended.
pub(super) unsafe extern "C" fn cuStreamDestroy_v2(on: CUstream) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        if id.handle == 0 {
            return Err(Code::CUDA_ERROR_INVALID_HANDLE);
        }
        let mut state = gpu.host.call()?;
        state.graphs.invalidate(id.handle);
        state.streams.destroy(id);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuStreamSynchronize(on: CUstream) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        ensure_not_captured(&gpu, id)?;
        ensure_permitted(&gpu.host)?;
        let point = gpu.host.call_on(id.device)?.streams.point(id);
        gpu.host.wait(id.device, point)
    })
}

pub(super) unsafe extern "C" fn cuStreamQuery(on: CUstream) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        ensure_not_captured(&gpu, id)?;
        ensure_permitted(&gpu.host)?;
        let point = gpu.host.lock().streams.point(id);
        gpu.host.poll(id.device, point)
    })
}

/// The function runs on the engine's thread, while all kernels of the host stand still. So equal seeds give equal runs.
pub(super) unsafe extern "C" fn cuLaunchHostFunc(
    on: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        if function.is_none() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let data = data as usize;
        // SAFETY: the caller passes a function with its data, to be called once by the stream, or by each launch of a graph.
        let call = move || unsafe { call_back(function, data) };
        let work = Work::Call(HostFunction(Arc::new(call)));
        enqueue(&gpu, id, StreamOp::Work(work)).map(drop)
    })
}

pub(super) unsafe extern "C" fn cuStreamIsCapturing(
    on: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        let status_now = status_of(gpu.host.call()?.graphs.capture(id.handle));
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(status, status_now) }
    })
}

fn status_of(capture: Option<&Capture>) -> CUstreamCaptureStatus {
    match capture {
        None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        Some(Capture {
            is_invalid: false, ..
        }) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    }
}

/// The returned dependencies are valid until the stream is used again.
pub(super) unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    on: CUstream,
    status: *mut CUstreamCaptureStatus,
    number: *mut cuuint64_t,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    dependency_count: *mut usize,
) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        let state = gpu.host.call()?;
        // SAFETY: the caller passes a valid pointer to the status. The other pointers may be null.
        unsafe { write_out(status, status_of(state.graphs.capture(id.handle)))? };
        let Some(branch) = state.graphs.capturing_streams.get(&id.handle) else {
            return Ok(());
        };
        // SAFETY: each pointer is null or points to memory for its value.
        unsafe {
            put_if_wanted(number, branch.graph);
            put_if_wanted(graph, branch.graph as CUgraph);
            put_if_wanted(dependencies, branch.after.as_ptr().cast());
            put_if_wanted(edges, null());
            put_if_wanted(dependency_count, branch.after.len());
        }
        Ok(())
    })
}

/// Writes a result, unless the caller has passed null.
///
/// # Safety
/// `to` must be null or point to memory for a `T`.
unsafe fn put_if_wanted<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { to.write(value) };
    }
}

pub(super) unsafe extern "C" fn cuStreamUpdateCaptureDependencies_v2(
    on: CUstream,
    dependencies: *mut CUgraphNode,
    _edges: *const CUgraphEdgeData,
    count: usize,
    flags: c_uint,
) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        if flags != UpdateFlags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES as c_uint {
            return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
        }
        let mut state = gpu.host.call()?;
        let branch = state.graphs.capturing_streams.get(&id.handle);
        let graph = branch.ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?.graph;
        let nodes: &[u64] = match count {
            0 => &[],
            // SAFETY: the caller passes an array of `count` handles.
            count => unsafe { std::slice::from_raw_parts(dependencies.cast(), count) },
        };
        let known = &state.graphs.get(graph)?.nodes;
        let is_known = |node: &u64| known.iter().any(|known| known.handle == *node);
        if !nodes.iter().all(is_known) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        state.graphs.join(id.handle, graph, nodes)
    })
}

pub(super) unsafe extern "C" fn cuStreamBeginCapture_v2(
    on: CUstream,
    mode: CUstreamCaptureMode,
) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        if id.handle == 0 {
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let graph = new_handle(&gpu.host);
        let mut state = gpu.host.call_on(id.device)?;
        state.graphs.begin(id.handle, graph, mode)
    })
}

pub(super) unsafe extern "C" fn cuStreamEndCapture(on: CUstream, graph: *mut CUgraph) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        let ended = gpu.host.call()?.graphs.end(id.handle);
        let handle = *ended.as_ref().unwrap_or(&0);
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(graph, handle as CUgraph)? };
        ended.map(drop)
    })
}

pub(super) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(
    mode: *mut CUstreamCaptureMode,
) -> Code {
    driver_call(|| {
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        let mode = unsafe { mode.as_mut() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        *mode = CAPTURE_MODE.replace(*mode);
        Ok(())
    })
}
