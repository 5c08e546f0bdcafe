//! Graphs: what a stream was captured into, to be launched again and again.

use super::{answer, put, stream};
use crate::driver::queue::Step;
use crate::driver::registry::{host_of, new_handle};
use crate::driver::{Code, Result};
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUgraphInstantiate_flags, CUstream};
use std::ffi::c_ulonglong;

pub(super) unsafe extern "C" fn cuGraphInstantiateWithFlags(
    to: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> Code {
    answer(|| {
        let on_device = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH.0;
        if flags & c_ulonglong::from(on_device) != 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let host = host_of(graph as u64)?;
        let mut state = host.call()?;
        let steps = state.graphs.get(&(graph as u64)).cloned();
        let steps = steps.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
        let handle = new_handle(&host);
        state.graphs.insert(handle, steps);
        // SAFETY: by the caller.
        unsafe { put(to, handle as CUgraphExec) }
    })
}

pub(super) unsafe extern "C" fn cuGraphLaunch(graph: CUgraphExec, on: CUstream) -> Code {
    answer(|| {
        let (here, id) = stream(on)?;
        let mut state = here.host.call_on(id.device)?;
        let steps = state.graphs.get(&(graph as u64)).cloned();
        let mut steps = steps.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(capture) = state.captures.get_mut(&id.handle) {
            capture.steps.append(&mut steps);
            return Ok(());
        }
        let seen = state.seen.clone();
        // An empty graph is a place in the stream too.
        steps.push(Step::Marker);
        for step in steps {
            state.queues.push(id, step, Vec::new(), seen.clone())?;
        }
        Ok(())
    })
}

/// There is nothing to bring to a GPU.
pub(super) unsafe extern "C" fn cuGraphUpload(graph: CUgraphExec, on: CUstream) -> Code {
    answer(|| {
        let (here, _) = stream(on)?;
        match here.host.call()?.graphs.contains_key(&(graph as u64)) {
            true => Ok(()),
            false => Err(Code::CUDA_ERROR_INVALID_HANDLE),
        }
    })
}

pub(super) unsafe extern "C" fn cuGraphExecDestroy(graph: CUgraphExec) -> Code {
    answer(|| destroy(graph as u64))
}

pub(super) unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> Code {
    answer(|| destroy(graph as u64))
}

fn destroy(handle: u64) -> Result<()> {
    let removed = host_of(handle)?.call()?.graphs.remove(&handle);
    removed.map(drop).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
}
