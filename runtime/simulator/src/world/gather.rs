//! Copies to shared memory that a thread issues and waits for (`cp.async`). They read at once, what they write comes as
//! late as a wait allows; until then there is what nobody wants to multiply by.

use super::machine::Machine;
use super::shadow::Way;
use super::sync::{Ordering, Scope};

const BYTES: usize = 16;

/// Copies of a thread that it has not waited for.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// Groups committed.
    committed: u32,
    copies: Vec<Copy>,
}

#[derive(Debug)]
struct Copy {
    group: u32,
    to: u32,
    data: [u8; BYTES],
    place: u64,
}

impl Machine {
    pub fn copy_async(&mut self, to: u32, from: u64, bytes: u32, place: u64) {
        let mut data = [0; BYTES];
        if bytes as usize > BYTES {
            return self.fail(format!("a copy of {bytes} bytes: it has 16 at most"));
        }
        if bytes > 0 {
            let ordering = Ordering {
                acquire: false,
                release: false,
            };
            let part = &mut data[..bytes as usize];
            self.load(from, part, Way::Weak, ordering, Scope::Cta, place);
        }
        self.store_shared(to, &[0xff; BYTES], place);
        let gather = &mut self.thread().gather;
        let group = gather.committed + 1;
        gather.copies.push(Copy {
            group,
            to,
            data,
            place,
        });
    }

    pub fn copy_commit(&mut self) {
        self.thread().gather.committed += 1;
    }

    /// Completes all but the last `pending` groups.
    pub fn copy_wait(&mut self, pending: u32) {
        let gather = &mut self.thread().gather;
        let over = gather.committed.saturating_sub(pending);
        let copies = std::mem::take(&mut gather.copies);
        let (done, left): (Vec<_>, Vec<_>) =
            copies.into_iter().partition(|copy| copy.group <= over);
        gather.copies = left;
        for copy in done {
            self.store_shared(copy.to, &copy.data, copy.place);
        }
    }
}
