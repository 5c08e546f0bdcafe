//! Posting of receives, to a queue pair or to a [`SharedReceiveQueue`].

use super::device::Device;
use super::errno::{failure, result};
use ibverbs_sys::{ibv_recv_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use std::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::Arc;

/// The id of every receive. Writes have smaller ids, so the completion of a request that failed can be assigned, although
/// its opcode is undefined.
pub(super) const RECEIVE_ID: u64 = u64::MAX;

/// Posts `count` receives by calls of `post`, a function of a driver's table. Arrivals carry immediate data only, so the
/// receives have memory only if a driver requires it.
pub(super) fn post_receives(
    count: u32,
    memory: Option<ibv_sge>,
    mut post: impl FnMut(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> io::Result<c_int>,
) -> io::Result<()> {
    const CHAIN: u32 = 64;
    let mut memory = memory;
    let sges = i32::from(memory.is_some());
    let list = memory.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let mut chain = [ibv_recv_wr {
        wr_id: RECEIVE_ID,
        sg_list: list,
        num_sge: sges,
        ..ibv_recv_wr::default()
    }; CHAIN as usize];
    let mut left = count;
    while left > 0 {
        let batch = left.min(CHAIN) as usize;
        link(&mut chain[..batch]);
        let mut refused = ptr::null_mut();
        result(post(chain.as_mut_ptr(), &raw mut refused)?)?;
        left -= batch as u32;
    }
    Ok(())
}

/// Links neighbouring requests to a chain.
fn link(chain: &mut [ibv_recv_wr]) {
    let mut next = ptr::null_mut();
    for request in chain.iter_mut().rev() {
        request.next = next;
        next = request;
    }
}

/// The receives of all RC queue pairs of a NIC.
///
/// The size of the queue does not depend on the number of queue pairs. The arrivals of all peers take receives from the queue.
/// A peer could therefore use the receives of another peer, and only the credits of the endpoints prevent this. The following
/// rules keep a receive posted for each write that may arrive, so that no sender ever gets a "receiver not ready":
///
/// 1. The queue holds `peers · share` receives. All receives are posted before the queue pairs are connected.
/// 2. A peer has at most `share` writes in flight: [`Limits::receives`](crate::transport::Limits::receives) is `share`,
///    and a write is in flight until the peer knows that `poll` has reported it.
/// 3. `poll` replaces the receives that completions have consumed before it returns the events of these completions.
///
/// Consider a write that arrives. By rule 3, each receive that is missing from the queue was consumed by another write that
/// `poll` has not reported yet. By rule 2, the number of such writes is below `peers · share`.
///
/// A queue pair that fails can take one receive with it, whose completion is never reported. This happens at most once per
/// queue pair, and the lost peer of the queue pair no longer needs its share.
pub(super) struct SharedReceiveQueue {
    device: Arc<Device>,
    pub(super) srq: *mut ibv_srq,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: see above.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// Creates a queue and fills it with receives.
    pub(super) fn new(device: &Arc<Device>, receives: u32) -> Result<Self, String> {
        let mut attributes = ibv_srq_init_attr {
            attr: ibv_srq_attr {
                max_wr: receives,
                max_sge: 1,
                ..ibv_srq_attr::default()
            },
            ..ibv_srq_init_attr::default()
        };
        // SAFETY: the protection domain lives as long as the device.
        let srq = unsafe { (device.verbs.create_srq)(device.pd, &raw mut attributes) };
        if srq.is_null() {
            return Err(format!(
                "cannot create a shared receive queue for {receives} receives: {}",
                failure()
            ));
        }
        let new = Self {
            device: Arc::clone(device),
            srq,
        };
        new.post(receives)
            .map_err(|error| format!("cannot post receives: {error}"))?;
        Ok(new)
    }

    /// Posts `count` receives.
    pub(super) fn post(&self, count: u32) -> io::Result<()> {
        post_receives(count, None, |chain, refused| {
            // SAFETY: this is the body of ibv_post_srq_recv of verbs.h. The requests live for the call, which copies them.
            unsafe {
                let post = (*self.device.context)
                    .ops
                    .post_srq_recv
                    .ok_or(io::ErrorKind::Unsupported)?;
                Ok(post(self.srq, chain, refused))
            }
        })
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: the queue pairs of this receive queue are gone, since each queue pair keeps an `Arc` of the queue.
        unsafe { (self.device.verbs.destroy_srq)(self.srq) };
    }
}
