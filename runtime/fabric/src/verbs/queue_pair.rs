//! What queue pairs of every type have in common: creation, state changes, receives.

use super::completion_queue::CompletionQueue;
use super::device::Device;
use super::errno::{last_error, result};
use ibverbs_sys::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_state, ibv_recv_wr, ibv_sge,
};
use std::io;
use std::ptr;
use std::sync::Arc;

/// How much a queue pair can have posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueDepth {
    pub(super) writes: u32,
    pub(super) receives: u32,
}

impl QueueDepth {
    /// What is asked for: one sge of memory a work request, and `inline_bytes` within it.
    pub(super) fn capabilities(self, inline_bytes: u32) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.writes,
            max_recv_wr: self.receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline_bytes,
        }
    }
}

/// What a kind of queue pair can do on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capability {
    pub(super) write_bytes: u32,
    pub(super) depth: QueueDepth,
}

/// A queue pair; all access to memory through it ends when it is dropped.
pub(super) struct QueuePair {
    queue: Arc<CompletionQueue>,
    pub(super) qp: *mut ibv_qp,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Takes what a function that creates queue pairs returned.
    ///
    /// # Safety
    ///
    /// `qp` is null, with a reason in `errno`, or a new queue pair on this queue that nobody else destroys.
    pub(super) unsafe fn created(
        queue: &Arc<CompletionQueue>,
        qp: *mut ibv_qp,
        depth: QueueDepth,
    ) -> Result<Self, String> {
        if qp.is_null() {
            return Err(format!(
                "no queue pair for {} writes and {} receives: {}",
                depth.writes,
                depth.receives,
                last_error()
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

    /// Its number, which is unique on its device.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: it lives until it is dropped.
        unsafe { (*self.qp).qp_num }
    }

    /// Goes to a state with the attributes that `mask` names.
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
        // SAFETY: the queue pair lives; the structure is as large as the library thinks.
        result(unsafe {
            (self.device().verbs.modify_qp)(self.qp, &raw mut attributes, mask as i32)
        })
        .map_err(|error| {
            format!(
                "queue pair {} does not go to state {state}: {error}",
                self.number()
            )
        })
    }

    /// Ends all that is posted; peers get errors from now on.
    pub(super) fn fail(&self) {
        // What does not go to the error state is in it, or is destroyed soon.
        let _ = self.modify(ibv_qp_state::IBV_QPS_ERR, ibv_qp_attr::default(), &[]);
    }

    /// Posts `count` receives. Arrivals are told by immediates, so these have memory only where a driver wants some.
    pub(super) fn post_receives(&self, count: u32, memory: Option<ibv_sge>) -> io::Result<()> {
        const CHAIN: u32 = 64;
        let mut memory = memory;
        let sges = i32::from(memory.is_some());
        let list = memory.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let mut chain = [ibv_recv_wr {
            sg_list: list,
            num_sge: sges,
            ..ibv_recv_wr::default()
        }; CHAIN as usize];
        let mut left = count;
        while left > 0 {
            let batch = left.min(CHAIN) as usize;
            link(&mut chain[..batch]);
            let mut refused = ptr::null_mut();
            // SAFETY: as ibv_post_recv of verbs.h. The chain has `batch` requests; they and the sge of memory that they
            // share live for the call, which copies them. The sge is of a rail's scratch memory, which outlives all queue
            // pairs.
            result(unsafe {
                let post = (*self.device().context)
                    .ops
                    .post_recv
                    .ok_or(io::ErrorKind::Unsupported)?;
                post(self.qp, chain.as_mut_ptr(), &raw mut refused)
            })?;
            left -= batch as u32;
        }
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        unsafe { (self.device().verbs.destroy_qp)(self.qp) };
    }
}

/// Makes a chain of neighbours.
fn link(chain: &mut [ibv_recv_wr]) {
    let mut next = ptr::null_mut();
    for request in chain.iter_mut().rev() {
        request.next = next;
        next = request;
    }
}
