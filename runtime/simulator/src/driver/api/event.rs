//! Events.

use super::{Here, answer, ensure_permitted, here, put, stream};
use crate::driver::graph::Branch;
use crate::driver::host::{Event, Recorded};
use crate::driver::queue::{Point, Step};
use crate::driver::registry::{host_of, new_handle};
use crate::driver::{Code, Result};
use cudarc::driver::sys::{CUevent, CUstream};
use std::ffi::c_uint;

pub(super) unsafe extern "C" fn cuEventCreate(to: *mut CUevent, _flags: c_uint) -> Code {
    answer(|| {
        let here = here()?;
        let handle = new_handle(&here.host);
        let event = Event {
            device: here.device,
            recorded: None,
        };
        here.host.call_on(here.device)?.events.insert(handle, event);
        // SAFETY: by the caller.
        unsafe { put(to, handle as CUevent) }
    })
}

pub(super) unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> Code {
    answer(|| {
        let removed = host_of(event as u64)?
            .call()?
            .events
            .remove(&(event as u64));
        removed.map(drop).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    })
}

pub(super) unsafe extern "C" fn cuEventRecord(event: CUevent, on: CUstream) -> Code {
    answer(|| {
        let (here, id) = stream(on)?;
        let mut state = here.host.call_on(id.device)?;
        let recorded = match state.graphs.branches.get(&id.handle) {
            Some(Branch { graph, after }) => Recorded::Captured {
                graph: *graph,
                after: after.clone(),
            },
            None => Recorded::Behind(state.queues.point(id)),
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
    answer(|| {
        let (here, id) = stream(on)?;
        let recorded = recorded(&here, event)?;
        let mut state = here.host.call_on(id.device)?;
        let is_captured = state.graphs.capture(id.handle).is_some();
        let point = match recorded {
            None => return Ok(()),
            Some(Recorded::Captured { graph, after }) => {
                return state.graphs.join(id.handle, graph, &after);
            }
            Some(Recorded::Behind(_)) if is_captured => {
                state.graphs.invalidate(id.handle);
                return Err(Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
            }
            Some(Recorded::Behind(point)) => point,
        };
        let mut after = state.seen.clone();
        after.join(&point.moment);
        state
            .queues
            .push(id, Step::Marker, point.tickets, after)
            .map(drop)
    })
}

pub(super) unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> Code {
    answer(|| {
        ensure_permitted(&*host_of(event as u64)?)?;
        match point(event)? {
            Some((here, point)) => here.host.wait(here.device, point),
            None => Ok(()),
        }
    })
}

pub(super) unsafe extern "C" fn cuEventQuery(event: CUevent) -> Code {
    answer(|| {
        ensure_permitted(&*host_of(event as u64)?)?;
        match point(event)? {
            Some((here, point)) => here.host.poll(here.device, point),
            None => Ok(()),
        }
    })
}

/// Time on this machine, which says nothing of GPUs.
pub(super) unsafe extern "C" fn cuEventElapsedTime_v2(
    ms: *mut f32,
    from: CUevent,
    to: CUevent,
) -> Code {
    answer(|| {
        let at = |event| {
            let (_, point) = point(event)?.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
            point.at().ok_or(Code::CUDA_ERROR_NOT_READY)
        };
        let (from, to) = (at(from)?, at(to)?);
        let elapsed = to.saturating_duration_since(from).as_secs_f32() * 1e3;
        // SAFETY: by the caller.
        unsafe { put(ms, elapsed) }
    })
}

/// Where the event was recorded; none if it was not.
fn point(event: CUevent) -> Result<Option<(Here, Point)>> {
    let host = host_of(event as u64)?;
    let state = host.lock();
    let known = state.events.get(&(event as u64));
    let known = known.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
    let (device, recorded) = (known.device, known.recorded.clone());
    drop(state);
    match recorded {
        None => Ok(None),
        Some(Recorded::Behind(point)) => Ok(Some((Here { host, device }, point))),
        Some(Recorded::Captured { .. }) => Err(Code::CUDA_ERROR_CAPTURED_EVENT),
    }
}

fn recorded(here: &Here, event: CUevent) -> Result<Option<Recorded>> {
    let state = here.host.lock();
    let event = state.events.get(&(event as u64));
    Ok(event
        .ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?
        .recorded
        .clone())
}
