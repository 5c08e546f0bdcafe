//! Events: points in streams for which other streams wait, or between which time is measured.

use super::call::{TargetGpu, current_gpu, driver_call, ensure_permitted, stream, write_out};
use crate::driver::completion::StreamPoint;
use crate::driver::graph::CapturingStream;
use crate::driver::host::{Event, RecordedAt};
use crate::driver::registry::{host_of, new_handle};
use crate::driver::result::{Code, Result};
use crate::driver::stream::StreamOp;
use cudarc::driver::sys::{CUevent, CUstream};
use std::ffi::c_uint;

pub(super) unsafe extern "C" fn cuEventCreate(to: *mut CUevent, _flags: c_uint) -> Code {
    driver_call(|| {
        let gpu = current_gpu()?;
        let handle = new_handle(&gpu.host);
        let event = Event {
            device: gpu.device,
            recorded: None,
        };
        gpu.host.call_on(gpu.device)?.events.insert(handle, event);
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(to, handle as CUevent) }
    })
}

pub(super) unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> Code {
    driver_call(|| {
        let removed = host_of(event as u64)?
            .call()?
            .events
            .remove(&(event as u64));
        removed.map(drop).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    })
}

pub(super) unsafe extern "C" fn cuEventRecord(event: CUevent, on: CUstream) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        let mut state = gpu.host.call_on(id.device)?;
        let recorded = match state.graphs.capturing_streams.get(&id.handle) {
            Some(CapturingStream { graph, after }) => RecordedAt::Captured {
                graph: *graph,
                after: after.clone(),
            },
            None => RecordedAt::Behind(state.streams.point(id)),
        };
        let event = state.events.get_mut(&(event as u64));
        event.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?.recorded = Some(recorded);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuStreamWaitEvent(
    on: CUstream,
    event: CUevent,
    _flags: c_uint,
) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        let recorded = recorded(&gpu, event)?;
        let mut state = gpu.host.call_on(id.device)?;
        let is_captured = state.graphs.capture(id.handle).is_some();
        let point = match recorded {
            None => return Ok(()),
            Some(RecordedAt::Captured { graph, after }) => {
                return state.graphs.join(id.handle, graph, &after);
            }
            Some(RecordedAt::Behind(_)) if is_captured => {
                state.graphs.invalidate(id.handle);
                return Err(Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
            }
            Some(RecordedAt::Behind(point)) => point,
        };
        let mut after = state.seen.clone();
        after.join(&point.moment);
        state
            .streams
            .push(id, StreamOp::Marker, point.completions, after)
            .map(drop)
    })
}

pub(super) unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> Code {
    driver_call(|| {
        ensure_permitted(&*host_of(event as u64)?)?;
        match point(event)? {
            Some((gpu, point)) => gpu.host.wait(gpu.device, point),
            None => Ok(()),
        }
    })
}

pub(super) unsafe extern "C" fn cuEventQuery(event: CUevent) -> Code {
    driver_call(|| {
        ensure_permitted(&*host_of(event as u64)?)?;
        match point(event)? {
            Some((gpu, point)) => gpu.host.poll(gpu.device, point),
            None => Ok(()),
        }
    })
}

/// Returns the time that has passed on this machine. It is unrelated to the time that a GPU would take.
pub(super) unsafe extern "C" fn cuEventElapsedTime_v2(
    ms: *mut f32,
    from: CUevent,
    to: CUevent,
) -> Code {
    driver_call(|| {
        let at = |event| {
            let (_, point) = point(event)?.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
            point.at().ok_or(Code::CUDA_ERROR_NOT_READY)
        };
        let (from, to) = (at(from)?, at(to)?);
        let elapsed = to.saturating_duration_since(from).as_secs_f32() * 1e3;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(ms, elapsed) }
    })
}

/// Returns the GPU and the point at which an event was recorded, or `None` if the event was not recorded.
fn point(event: CUevent) -> Result<Option<(TargetGpu, StreamPoint)>> {
    let host = host_of(event as u64)?;
    let state = host.lock();
    let known = state.events.get(&(event as u64));
    let known = known.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
    let (device, recorded) = (known.device, known.recorded.clone());
    drop(state);
    match recorded {
        None => Ok(None),
        Some(RecordedAt::Behind(point)) => Ok(Some((TargetGpu { host, device }, point))),
        Some(RecordedAt::Captured { .. }) => Err(Code::CUDA_ERROR_CAPTURED_EVENT),
    }
}

/// Returns where an event was recorded.
fn recorded(gpu: &TargetGpu, event: CUevent) -> Result<Option<RecordedAt>> {
    let state = gpu.host.lock();
    let event = state.events.get(&(event as u64));
    Ok(event
        .ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?
        .recorded
        .clone())
}
