//! Captures of streams into graphs: what they forbid other threads, what a launch in one comes after, and what a graph
//! keeps alive.

use super::{check, named, warn};
use crate::error::Error;
use cudarc::driver::{DriverError, sys};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// While it lives, captures of other streams do not forbid this thread to ask for the end of work or to free memory.
/// None of what the runtime does then can become a part of a graph: it only touches its own memory.
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

/// Sets this thread's mode, and returns the one before.
fn exchange_mode(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: the pointer is to a live mode; only this thread is affected.
    warn(check("cuThreadExchangeStreamCaptureMode", unsafe {
        sys::cuThreadExchangeStreamCaptureMode(&raw mut mode)
    }));
    mode
}

/// A capture that a stream takes part in.
pub(crate) struct Capture {
    /// Unique in this process.
    pub id: u64,
    graph: sys::CUgraph,
    /// What the stream's next node comes after.
    after: Vec<Node>,
}

/// A node of a graph that is being captured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node(sys::CUgraphNode);

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Node {}

impl Capture {
    /// What `stream` is being captured into, if it is.
    ///
    /// # Safety
    /// `stream` must be alive.
    pub unsafe fn of(stream: sys::CUstream) -> Result<Option<Self>, Error> {
        let call = "cuStreamGetCaptureInfo";
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph) = (0, null_mut());
        let (mut nodes, mut edges, mut count) = (null(), null(), 0);
        // SAFETY: the pointers are to live values, the stream is alive by the caller.
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
            // SAFETY: the driver's array is as long as it says, and stays until the stream is used again.
            count => unsafe { std::slice::from_raw_parts(nodes, count) }
                .iter()
                .map(|node| Node(*node))
                .collect(),
        };
        Ok(Some(Self { id, graph, after }))
    }

    /// The node that was captured last, right after one was.
    pub fn last(&self) -> Option<Node> {
        match self.after[..] {
            [node] => Some(node),
            _ => None,
        }
    }

    /// Lets what is captured next in `stream` come after `node`, too.
    ///
    /// # Safety
    /// `stream` must be alive and take part in this capture, of which `node` must be.
    pub unsafe fn follow(&self, stream: sys::CUstream, node: Node) -> Result<(), Error> {
        if self.after.contains(&node) {
            return Ok(());
        }
        let Node(mut node) = node;
        let flags =
            sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES;
        // SAFETY: by the caller; without data the edge is an ordinary one.
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

    /// Lets the graph call `release` with `data` once it, all executable graphs made of it, and all their launches are
    /// over. If this fails, it is called now.
    ///
    /// # Safety
    /// The capture must be under way. `release` must take such data, on any thread, and must not call the driver.
    pub unsafe fn retain(
        &self,
        data: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
    ) -> Result<(), Error> {
        let mut object = null_mut();
        let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: the pointer is to a live handle; the rest by the caller.
        let created = check("cuUserObjectCreate", unsafe {
            sys::cuUserObjectCreate(&raw mut object, data, Some(release), 1, flags)
        });
        if created.is_err() {
            // SAFETY: by the caller; the driver has not taken it.
            unsafe { release(data) };
            return created;
        }
        let moves = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the graph is being captured, by the caller, and the one reference is ours to give.
        let retained = check("cuGraphRetainUserObject", unsafe {
            sys::cuGraphRetainUserObject(self.graph, object, 1, moves)
        });
        if retained.is_err() {
            // SAFETY: the reference is still ours.
            warn(check("cuUserObjectRelease", unsafe {
                sys::cuUserObjectRelease(object, 1)
            }));
        }
        retained
    }
}
