//! [`CompletionQueue`]: the queue in which a NIC reports the completions of all queue pairs of an endpoint.

use super::device::Device;
use super::errno::failure;
use ibverbs_sys::{ibv_cq, ibv_wc};
use std::io;
use std::ptr;
use std::sync::Arc;

/// A completion queue for all queue pairs of a device.
pub(super) struct CompletionQueue {
    pub(super) device: Arc<Device>,
    pub(super) cq: *mut ibv_cq,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: see above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue that never holds more than `entries` completions.
    pub(super) fn new(device: &Arc<Device>, entries: u32) -> Result<Self, String> {
        let limit = device.attributes.max_cqe;
        let wanted = i32::try_from(entries).ok().filter(|entries| *entries <= limit).ok_or_else(|| {
            format!("{entries} completions may be pending, but a completion queue of the device holds at most {limit}; set fewer writes or receives")
        })?;
        // SAFETY: the device is open, and no completion channel is passed.
        let cq = unsafe {
            (device.verbs.create_cq)(device.context, wanted, ptr::null_mut(), ptr::null_mut(), 0)
        };
        if cq.is_null() {
            return Err(format!(
                "cannot create a completion queue of {entries} entries: {}",
                failure()
            ));
        }
        Ok(Self {
            device: Arc::clone(device),
            cq,
        })
    }

    /// Fills `completions` from the front and returns the number of entries. If not all of `completions` is filled, the queue
    /// is empty.
    pub(super) fn poll(&self, completions: &mut [ibv_wc]) -> io::Result<usize> {
        // SAFETY: this is the body of ibv_poll_cq of verbs.h, which is inline there. The table belongs to the queue's
        // device, and the driver has set the member before the device was open. The buffer has room for the requested
        // number of completions, and a driver writes no more than this number.
        let count = unsafe {
            let poll = (*self.device.context)
                .ops
                .poll_cq
                .ok_or(io::ErrorKind::Unsupported)?;
            poll(self.cq, completions.len() as i32, completions.as_mut_ptr())
        };
        let count = usize::try_from(count)
            .map_err(|_| io::Error::from_raw_os_error(count.saturating_abs()))?;
        Ok(count.min(completions.len()))
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the queue pairs of this completion queue are gone, since each queue pair keeps an `Arc` of the queue.
        unsafe { (self.device.verbs.destroy_cq)(self.cq) };
    }
}
