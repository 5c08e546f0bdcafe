//! Graphs, which are created by captures and launched any number of times, and the user objects that they retain.

use super::call::{current_gpu, driver_call, stream, write_out};
use crate::driver::registry::{host_of, new_handle};
use crate::driver::result::{Code, Result};
use crate::driver::user_object::UserObject;
use cudarc::driver::sys::{
    CUgraph, CUgraphExec, CUhostFn, CUstream, CUuserObject, CUuserObject_flags,
    CUuserObjectRetain_flags,
};
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::sync::Arc;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`, whose type differs between versions of cudarc.
const DEVICE_LAUNCH: c_ulonglong = 4;

pub(super) unsafe extern "C" fn cuGraphInstantiateWithFlags(
    to: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> Code {
    driver_call(|| {
        if flags & DEVICE_LAUNCH != 0 {
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
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(to, handle as CUgraphExec) }
    })
}

pub(super) unsafe extern "C" fn cuGraphLaunch(graph: CUgraphExec, on: CUstream) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        let mut state = gpu.host.call_on(id.device)?;
        let graph = state.graphs.get(graph as u64)?.clone();
        let handle = || new_handle(&gpu.host);
        if state.graphs.capture(id.handle).is_some() {
            state.graphs.add_all(id.handle, graph, handle);
            return Ok(());
        }
        let seen = state.seen.clone();
        graph.launch(&mut state.streams, id, &seen, handle)
    })
}

/// Does nothing but check the handles, since graphs need no upload here.
pub(super) unsafe extern "C" fn cuGraphUpload(graph: CUgraphExec, on: CUstream) -> Code {
    driver_call(|| {
        let (gpu, _) = stream(on)?;
        gpu.host.call()?.graphs.get(graph as u64).map(drop)
    })
}

pub(super) unsafe extern "C" fn cuGraphExecDestroy(graph: CUgraphExec) -> Code {
    driver_call(|| destroy(graph as u64))
}

pub(super) unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> Code {
    driver_call(|| destroy(graph as u64))
}

fn destroy(handle: u64) -> Result<()> {
    let removed = host_of(handle)?.call()?.graphs.graphs.remove(&handle);
    removed.map(drop).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
}

/// Creates an object with one reference, which a graph then takes over.
pub(super) unsafe extern "C" fn cuUserObjectCreate(
    to: *mut CUuserObject,
    data: *mut c_void,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
) -> Code {
    driver_call(|| {
        let unsynchronised = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as c_uint;
        if references != 1 || flags != unsynchronised || destroy.is_none() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let gpu = current_gpu()?;
        let handle = new_handle(&gpu.host);
        let mut state = gpu.host.call()?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(to, handle as CUuserObject)? };
        let data = data as usize;
        let object = Arc::new(UserObject { data, destroy });
        state.graphs.objects.insert(handle, object);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuUserObjectRelease(object: CUuserObject, count: c_uint) -> Code {
    driver_call(|| {
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
    driver_call(|| {
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
