//! Helpers of all functions of the driver: error codes, the current GPU, streams, and enqueueing.

use crate::driver::callback::ensure_callable;
use crate::driver::completion::Completion;
use crate::driver::host::Host;
use crate::driver::registry::{device as device_of, host_of, new_handle};
use crate::driver::result::{Code, Result};
use crate::driver::stream::StreamOp;
use crate::driver::streams::StreamId;
use cudarc::driver::sys;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Runs the body of a function of the driver. A panic becomes an error code.
pub(super) fn driver_call(body: impl FnOnce() -> Result<()>) -> Code {
    let body = || ensure_callable().and_then(|()| body());
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::CUDA_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            tracing::error!("a function of the simulated driver panicked");
            Code::CUDA_ERROR_UNKNOWN
        }
    }
}

/// Writes a result to the caller's memory.
///
/// # Safety
/// `to` must be null or point to memory for a `T`.
pub(super) unsafe fn write_out<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller guarantees that `to` points to memory for a `T`.
    unsafe { to.write(value) };
    Ok(())
}

/// All contexts are primary contexts. Their handles look like pointers.
const CONTEXT_BASE: usize = 0x5100_0000;
const CONTEXT_STEP: usize = 16;

/// The largest special handle, `CU_STREAM_PER_THREAD`. Here this handle, `CU_STREAM_LEGACY` and null all denote one default
/// stream.
const LAST_SPECIAL_STREAM: u64 = 2;

thread_local! {
    /// The ordinal of the GPU whose context is current on this thread.
    pub(super) static CURRENT: Cell<Option<i32>> = const { Cell::new(None) };
}

/// Returns the handle of a GPU's context.
pub(super) fn context_of(ordinal: i32) -> sys::CUcontext {
    (CONTEXT_BASE + ordinal as usize * CONTEXT_STEP) as sys::CUcontext
}

/// Returns the ordinal of the GPU with a context.
pub(super) fn ordinal_of(context: sys::CUcontext) -> Result<i32> {
    let offset = (context as usize).wrapping_sub(CONTEXT_BASE);
    i32::try_from(offset / CONTEXT_STEP)
        .ok()
        .filter(|ordinal| offset.is_multiple_of(CONTEXT_STEP) && device_of(*ordinal).is_ok())
        .ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)
}

/// The GPU that a call works on.
pub(super) struct TargetGpu {
    pub host: Arc<Host>,
    pub device: u32,
}

/// Returns the GPU whose context is current on this thread.
pub(super) fn current_gpu() -> Result<TargetGpu> {
    let ordinal = CURRENT.get().ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)?;
    let (host, device) = device_of(ordinal)?;
    let host = host.ok_or(Code::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
    let gpu_is_held = |device| {
        host.lock()
            .devices
            .get(device as usize)
            .is_some_and(|gpu| gpu.retains > 0)
    };
    if !gpu_is_held(device) {
        return Err(Code::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    Ok(TargetGpu { host, device })
}

/// Returns the stream with a handle, and its GPU. The handle may denote the default stream.
pub(super) fn stream(handle: sys::CUstream) -> Result<(TargetGpu, StreamId)> {
    let handle = handle as u64;
    if handle <= LAST_SPECIAL_STREAM {
        let gpu = current_gpu()?;
        let id = StreamId::default_of(gpu.device);
        return Ok((gpu, id));
    }
    let host = host_of(handle)?;
    let id = host.lock().streams.find(handle)?;
    let device = id.device;
    Ok((TargetGpu { host, device }, id))
}

/// Enqueues an operation and returns its completion. If the stream is being captured, adds the operation to the graph
/// and returns `None`.
pub(super) fn enqueue(gpu: &TargetGpu, id: StreamId, op: StreamOp) -> Result<Option<Completion>> {
    let mut state = gpu.host.call_on(id.device)?;
    if state.graphs.capture(id.handle).is_some() {
        if !matches!(op, StreamOp::Work(_) | StreamOp::Kernel(..)) {
            state.graphs.invalidate(id.handle);
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let node = new_handle(&gpu.host);
        return state.graphs.add(id.handle, op, node).map(|()| None);
    }
    let seen = state.seen.clone();
    state.streams.push(id, op, Vec::new(), seen).map(Some)
}

/// Fails and invalidates the capture if the stream is being captured.
pub(super) fn ensure_not_captured(gpu: &TargetGpu, id: StreamId) -> Result<()> {
    let mut state = gpu.host.lock();
    if state.graphs.capture(id.handle).is_none() {
        return Ok(());
    }
    state.graphs.invalidate(id.handle);
    Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

/// Fails and invalidates captures if a capture forbids this thread all calls that could disturb the capture.
pub(super) fn ensure_permitted(host: &Host) -> Result<()> {
    host.lock().graphs.ensure_permitted()
}
