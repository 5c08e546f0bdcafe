//! [`QueuePair`]: the common operations of queue pairs of every type: creation, state changes, receives.

use super::completion_queue::CompletionQueue;
use super::device::Device;
use super::errno::{failure, result};
use super::receives::post_receives;
use ibverbs_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_state, ibv_sge};
use std::io;
use std::sync::Arc;

/// The numbers of requests that queues can have posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueDepth {
    /// The writes of a queue pair.
    pub(super) writes: u32,
    /// The receives of a receive queue: the queue that all queue pairs of a NIC share, or the queue of a queue pair for all
    /// peers.
    pub(super) receives: u32,
}

/// Returns the capabilities to request for a queue pair: one scatter/gather element per work request, and `inline_bytes`
/// of inline data.
pub(super) fn capabilities(writes: u32, receives: u32, inline_bytes: u32) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: writes,
        max_recv_wr: receives,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: inline_bytes,
    }
}

/// The capability of a queue pair type on a port of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capability {
    /// The size of the longest write in bytes.
    pub(super) write_bytes: u32,
    /// The deepest queues.
    pub(super) depth: QueueDepth,
}

/// A queue pair. All access to memory through it ends when it is dropped.
pub(super) struct QueuePair {
    queue: Arc<CompletionQueue>,
    pub(super) qp: *mut ibv_qp,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Takes the result of a function that creates queue pairs.
    ///
    /// # Safety
    ///
    /// `qp` must be null, with the reason in `errno`, or a new queue pair on this completion queue that only the result
    /// destroys.
    pub(super) unsafe fn created(
        queue: &Arc<CompletionQueue>,
        qp: *mut ibv_qp,
        writes: u32,
    ) -> Result<Self, String> {
        if qp.is_null() {
            return Err(format!(
                "cannot create a queue pair for {writes} writes: {}",
                failure()
            ));
        }
        Ok(Self {
            queue: Arc::clone(queue),
            qp,
        })
    }

    pub(super) fn device(&self) -> &Device {
        &self.queue.device
    }

    /// Returns the number of the queue pair, which is unique on its device.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives until it is dropped.
        unsafe { (*self.qp).qp_num }
    }

    /// Changes the state, and the attributes that `mask` names.
    pub(super) fn modify(
        &self,
        state: ibv_qp_state::Type,
        attributes: ibv_qp_attr,
        mask: &[ibv_qp_attr_mask],
    ) -> Result<(), String> {
        let mut attributes = ibv_qp_attr {
            qp_state: state,
            ..attributes
        };
        let mask = mask
            .iter()
            .fold(ibv_qp_attr_mask::IBV_QP_STATE.0, |all, one| all | one.0);
        // SAFETY: the queue pair is alive, and the structure has the size that the library expects.
        result(unsafe {
            (self.device().verbs.modify_qp)(self.qp, &raw mut attributes, mask as i32)
        })
        .map_err(|error| {
            format!(
                "cannot move queue pair {} to state {state}: {error}",
                self.number()
            )
        })
    }

    /// Moves the queue pair to the error state. All posted requests end, and peers get errors from now on.
    pub(super) fn fail(&self) {
        // A queue pair that cannot change to the error state is already in that state or is about to be destroyed.
        let _ = self.modify(ibv_qp_state::IBV_QPS_ERR, ibv_qp_attr::default(), &[]);
    }

    /// Posts `count` receives on the queue pair's own receive queue.
    pub(super) fn post_receives(&self, count: u32, memory: Option<ibv_sge>) -> io::Result<()> {
        post_receives(count, memory, |chain, refused| {
            // SAFETY: this is the body of ibv_post_recv of verbs.h. The requests and the scatter/gather element that they
            // share live for the call, which copies them. The element refers to the scratch memory of a rail, which
            // outlives all queue pairs.
            unsafe {
                let post = (*self.device().context)
                    .ops
                    .post_recv
                    .ok_or(io::ErrorKind::Unsupported)?;
                Ok(post(self.qp, chain, refused))
            }
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the queue pair is not used after this.
        unsafe { (self.device().verbs.destroy_qp)(self.qp) };
    }
}
