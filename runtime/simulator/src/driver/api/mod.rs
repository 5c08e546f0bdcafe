//! The functions that cudarc calls, by subject. Each checks what it is given, says no with the driver's own codes, and
//! never unwinds into its caller.

#![allow(non_snake_case, reason = "the names are the driver's")]

mod context;
mod copy;
mod device;
mod event;
mod function;
mod graph;
mod memory;
mod stream;
mod table;
mod tensor_map;
mod virtual_memory;

pub(super) use table::functions;

use super::graph::ensure_callable;
use super::host::Host;
use super::queue::{Step, StreamId, Ticket};
use super::registry::{device as device_of, host_of, new_handle};
use super::{Code, Result};
use cudarc::driver::sys;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Runs the body of a function of the driver.
fn answer(body: impl FnOnce() -> Result<()>) -> Code {
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

/// Writes a result where the caller wants it.
///
/// # Safety
/// `to` must be null or a place for a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: by the caller.
    unsafe { to.write(value) };
    Ok(())
}

/// Contexts are primary ones, and look like pointers.
const CONTEXT_BASE: usize = 0x5100_0000;
const CONTEXT_STEP: usize = 16;

/// `CU_STREAM_PER_THREAD`; before it come `CU_STREAM_LEGACY` and null. All mean the one default stream here.
const LAST_SPECIAL_STREAM: u64 = 2;

thread_local! {
    /// The ordinal whose context is current.
    static CURRENT: Cell<Option<i32>> = const { Cell::new(None) };
}

fn context_of(ordinal: i32) -> sys::CUcontext {
    (CONTEXT_BASE + ordinal as usize * CONTEXT_STEP) as sys::CUcontext
}

fn ordinal_of(context: sys::CUcontext) -> Result<i32> {
    let offset = (context as usize).wrapping_sub(CONTEXT_BASE);
    i32::try_from(offset / CONTEXT_STEP)
        .ok()
        .filter(|ordinal| offset.is_multiple_of(CONTEXT_STEP) && device_of(*ordinal).is_ok())
        .ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)
}

/// A GPU that a call is for.
struct Here {
    host: Arc<Host>,
    device: u32,
}

/// The GPU whose context is current on this thread.
fn here() -> Result<Here> {
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
    Ok(Here { host, device })
}

/// The stream of a handle, which may be one of the values that mean the default stream.
fn stream(handle: sys::CUstream) -> Result<(Here, StreamId)> {
    let handle = handle as u64;
    if handle <= LAST_SPECIAL_STREAM {
        let here = here()?;
        let id = StreamId::default_of(here.device);
        return Ok((here, id));
    }
    let host = host_of(handle)?;
    let id = host.lock().queues.find(handle)?;
    let device = id.device;
    Ok((Here { host, device }, id))
}

/// Enqueues a step, or adds it to the graph that is being captured. The ticket is that of enqueued work.
fn enqueue(here: &Here, id: StreamId, step: Step) -> Result<Option<Ticket>> {
    let mut state = here.host.call_on(id.device)?;
    if state.graphs.capture(id.handle).is_some() {
        if !matches!(step, Step::Work(_)) {
            state.graphs.invalidate(id.handle);
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let node = new_handle(&here.host);
        return state.graphs.add(id.handle, step, node).map(|()| None);
    }
    let seen = state.seen.clone();
    state.queues.push(id, step, Vec::new(), seen).map(Some)
}

/// Fails, and spoils the capture, if the stream is being captured.
fn ensure_not_captured(here: &Here, id: StreamId) -> Result<()> {
    let mut state = here.host.lock();
    if state.graphs.capture(id.handle).is_none() {
        return Ok(());
    }
    state.graphs.invalidate(id.handle);
    Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

/// Fails, and spoils captures, if one of them forbids this thread what could disturb it.
fn ensure_permitted(host: &Host) -> Result<()> {
    host.lock().graphs.ensure_permitted()
}
