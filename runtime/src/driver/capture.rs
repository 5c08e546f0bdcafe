//! Stream capture: its effects on other threads, the order of captured launches, and the objects that a graph keeps alive.

use super::call::{check, named, warn};
use crate::error::Error;
use cudarc::driver::{DriverError, sys};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// While this value is alive, captures of other streams do not prevent this thread from querying work or freeing
/// memory. Nothing that the runtime does meanwhile can become part of a graph, since it only touches its own memory.
pub(crate) struct Uncaptured(sys::CUstreamCaptureMode);

impl Uncaptured {
    pub fn new() -> Self {
        let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        Self(exchange_mode(relaxed))
    }
}

impl Drop for Uncaptured {
    fn drop(&mut self) {
        exchange_mode(self.0);
    }
}

/// Sets the capture mode of this thread, and returns the previous one.
fn exchange_mode(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: the pointer refers to a live mode. Only this thread is affected.
    warn(check("cuThreadExchangeStreamCaptureMode", unsafe {
        sys::cuThreadExchangeStreamCaptureMode(&raw mut mode)
    }));
    mode
}

/// A capture that a stream takes part in.
pub(crate) struct Capture {
    /// The id of the capture, which is unique in this process.
    pub id: u64,
    graph: sys::CUgraph,
    /// The nodes that the stream's next node depends on.
    after: Vec<GraphNode>,
}

/// A node of a graph that is being captured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct GraphNode(sys::CUgraphNode);

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for GraphNode {}

impl Capture {
    /// Returns the capture that `stream` takes part in, if there is one.
    ///
    /// # Safety
    /// `stream` must be alive.
    pub unsafe fn of(stream: sys::CUstream) -> Result<Option<Self>, Error> {
        let call = "cuStreamGetCaptureInfo";
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph) = (0, null_mut());
        let (mut nodes, mut edges, mut count) = (null(), null(), 0);
        // SAFETY: the pointers refer to live values, and the caller guarantees that the stream is alive.
        check(call, unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                stream,
                &raw mut status,
                &raw mut id,
                &raw mut graph,
                &raw mut nodes,
                &raw mut edges,
                &raw mut count,
            )
        })?;
        match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => return Ok(None),
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => {}
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED => {
                let code = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
                return named(call, Err(DriverError(code)));
            }
        }
        let after = match count {
            0 => Vec::new(),
            // SAFETY: the array of the driver has `count` elements and is valid until the stream is used again.
            count => unsafe { std::slice::from_raw_parts(nodes, count) }
                .iter()
                .map(|node| GraphNode(*node))
                .collect(),
        };
        Ok(Some(Self { id, graph, after }))
    }

    /// Returns the node that was captured last. This must be called right after a capture of one node.
    pub fn last(&self) -> Option<GraphNode> {
        match self.after[..] {
            [node] => Some(node),
            _ => None,
        }
    }

    /// Makes the next node in `stream` depend on `node` too.
    ///
    /// # Safety
    /// `stream` must be alive and take part in this capture, and `node` must belong to it.
    pub unsafe fn follow(&self, stream: sys::CUstream, node: GraphNode) -> Result<(), Error> {
        if self.after.contains(&node) {
            return Ok(());
        }
        let GraphNode(mut node) = node;
        let flags =
            sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES;
        // SAFETY: guaranteed by the caller. Without edge data, the edge is an ordinary one.
        check("cuStreamUpdateCaptureDependencies", unsafe {
            sys::cuStreamUpdateCaptureDependencies_v2(
                stream,
                &raw mut node,
                null(),
                1,
                flags as u32,
            )
        })
    }

    /// Makes the graph call `release` with `data` after the graph, all executable graphs made from it, and all launches of
    /// these graphs have ended. If this returns an error, `release` was already called.
    ///
    /// # Safety
    /// The capture must be under way. `release` must accept `data`, must be callable on any thread, and must not call
    /// the driver.
    pub unsafe fn retain(
        &self,
        data: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
    ) -> Result<(), Error> {
        let mut object = null_mut();
        let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: the pointer refers to a live handle. The caller guarantees the rest.
        let created = check("cuUserObjectCreate", unsafe {
            sys::cuUserObjectCreate(&raw mut object, data, Some(release), 1, flags)
        });
        if created.is_err() {
            // SAFETY: guaranteed by the caller. The driver has not taken ownership.
            unsafe { release(data) };
            return created;
        }
        let moves = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the caller guarantees that the graph is being captured. This function owns the one reference and
        // passes it on.
        let retained = check("cuGraphRetainUserObject", unsafe {
            sys::cuGraphRetainUserObject(self.graph, object, 1, moves)
        });
        if retained.is_err() {
            // SAFETY: this function still owns the reference.
            warn(check("cuUserObjectRelease", unsafe {
                sys::cuUserObjectRelease(object, 1)
            }));
        }
        retained
    }
}
