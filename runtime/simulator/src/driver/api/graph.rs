//! Graphs: what a stream was captured into, to be launched again and again.

use super::{answer, here, put, stream};
use crate::driver::graph::UserObject;
use crate::driver::registry::{host_of, new_handle};
use crate::driver::{Code, Result};
use cudarc::driver::sys::{
    CUgraph, CUgraphExec, CUgraphInstantiate_flags, CUhostFn, CUstream, CUuserObject,
    CUuserObject_flags, CUuserObjectRetain_flags,
};
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::sync::Arc;

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
        let graph = state.graphs.get(graph as u64)?.clone();
        if graph.capture.is_some() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let handle = new_handle(&host);
        state.graphs.graphs.insert(handle, graph);
        // SAFETY: by the caller.
        unsafe { put(to, handle as CUgraphExec) }
    })
}

pub(super) unsafe extern "C" fn cuGraphLaunch(graph: CUgraphExec, on: CUstream) -> Code {
    answer(|| {
        let (here, id) = stream(on)?;
        let mut state = here.host.call_on(id.device)?;
        let graph = state.graphs.get(graph as u64)?.clone();
        let handle = || new_handle(&here.host);
        if state.graphs.capture(id.handle).is_some() {
            state.graphs.add_all(id.handle, graph, handle);
            return Ok(());
        }
        let seen = state.seen.clone();
        graph.launch(&mut state.queues, id, &seen, handle)
    })
}

/// There is nothing to bring to a GPU.
pub(super) unsafe extern "C" fn cuGraphUpload(graph: CUgraphExec, on: CUstream) -> Code {
    answer(|| {
        let (here, _) = stream(on)?;
        here.host.call()?.graphs.get(graph as u64).map(drop)
    })
}

pub(super) unsafe extern "C" fn cuGraphExecDestroy(graph: CUgraphExec) -> Code {
    answer(|| destroy(graph as u64))
}

pub(super) unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> Code {
    answer(|| destroy(graph as u64))
}

fn destroy(handle: u64) -> Result<()> {
    let removed = host_of(handle)?.call()?.graphs.graphs.remove(&handle);
    removed.map(drop).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
}

/// An object of one reference, which a graph then takes over.
pub(super) unsafe extern "C" fn cuUserObjectCreate(
    to: *mut CUuserObject,
    data: *mut c_void,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
) -> Code {
    answer(|| {
        let unsynchronised = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as c_uint;
        if references != 1 || flags != unsynchronised || destroy.is_none() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let here = here()?;
        let handle = new_handle(&here.host);
        let mut state = here.host.call()?;
        // SAFETY: by the caller.
        unsafe { put(to, handle as CUuserObject)? };
        let data = data as usize;
        let object = Arc::new(UserObject { data, destroy });
        state.graphs.objects.insert(handle, object);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuUserObjectRelease(object: CUuserObject, count: c_uint) -> Code {
    answer(|| {
        let handle = object as u64;
        let removed = host_of(handle)?.call()?.graphs.objects.remove(&handle);
        match (removed, count) {
            (Some(object), 1) => drop(object),
            _ => return Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: c_uint,
    flags: c_uint,
) -> Code {
    answer(|| {
        let moves = CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as c_uint;
        if count != 1 || flags != moves {
            return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
        }
        let host = host_of(graph as u64)?;
        let mut state = host.call()?;
        state.graphs.get(graph as u64)?;
        let object = state.graphs.objects.remove(&(object as u64));
        let object = object.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        state.graphs.get(graph as u64)?.objects.push(object);
        Ok(())
    })
}
