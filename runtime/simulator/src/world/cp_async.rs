//! `cp.async`: copies to shared memory for which the issuing thread waits.
//!
//! A copy reads its source at once and writes its target as late as a wait allows. Until then, the target holds NaN, so
//! that a product that uses the data too early is wrong.

use super::machine::Machine;
use super::stamp::AccessKind;
use super::state::async_copies::{ASYNC_COPY_BYTES, AsyncCopy};
use super::state::sync_words::{MemoryOrder, Scope};

impl Machine {
    /// Issues a copy of `bytes` bytes. The rest of the 16 bytes at `to` becomes zero.
    pub fn copy_async(&mut self, to: u32, from: u64, bytes: u32, pc: u64) {
        let mut data = [0; ASYNC_COPY_BYTES];
        if bytes as usize > ASYNC_COPY_BYTES {
            return self.fail(format!(
                "cp.async of {bytes} bytes: at most {ASYNC_COPY_BYTES} bytes are possible"
            ));
        }
        if bytes > 0 {
            let order = MemoryOrder {
                acquire: false,
                release: false,
            };
            let part = &mut data[..bytes as usize];
            self.load(from, part, AccessKind::Weak, order, Scope::Cta, pc);
        }
        self.store_shared(to, &[0xff; ASYNC_COPY_BYTES], pc);
        let issued = &mut self.thread().async_copies;
        let group = issued.committed + 1;
        issued.copies.push(AsyncCopy {
            group,
            to,
            data,
            pc,
        });
    }

    /// Ends the current group of copies.
    pub fn copy_commit(&mut self) {
        self.thread().async_copies.committed += 1;
    }

    /// Completes all groups except the last `pending` groups.
    pub fn copy_wait(&mut self, pending: u32) {
        let issued = &mut self.thread().async_copies;
        let over = issued.committed.saturating_sub(pending);
        let copies = std::mem::take(&mut issued.copies);
        let (done, left): (Vec<_>, Vec<_>) =
            copies.into_iter().partition(|copy| copy.group <= over);
        issued.copies = left;
        for copy in done {
            self.store_shared(copy.to, &copy.data, copy.pc);
        }
    }
}
