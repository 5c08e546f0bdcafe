//! Copies by TMA in flight, and the bulk groups by which threads wait for their copies.

use super::counters::StepCounter;
use crate::world::clock::View;
use crate::world::tensor::Run;

/// The bulk groups of a thread: stores by TMA for which the thread can wait.
#[derive(Debug, Default)]
pub struct BulkGroups {
    /// The counter of reads of shared memory and the counter of writes of global memory. Each has a step per group.
    pub counters: Option<(StepCounter, StepCounter)>,
    /// The number of committed groups.
    pub committed: u32,
    /// The number of copies in the group that is not committed yet.
    pub open: u32,
    /// The groups that are not complete: the number of the group, and its remaining reads and writes.
    pub groups: Vec<(u32, u32, u32)>,
    /// The wait of the thread: the last group, and whether the end of its reads suffices. `None` if the thread does not wait.
    pub waits: Option<(u32, bool)>,
}

impl BulkGroups {
    /// Returns whether all groups up to `last` are complete. With `read_only`, their reads suffice.
    #[inline]
    pub fn is_over(&self, last: u32, read_only: bool) -> bool {
        self.groups
            .iter()
            .filter(|(group, ..)| *group <= last)
            .all(|(_, reads, writes)| *reads == 0 && (read_only || *writes == 0))
    }
}

/// A copy by TMA that has been issued and is not complete.
#[derive(Debug)]
pub struct TmaCopy {
    /// The thread that issued the copy.
    pub thread: usize,
    pub launch: usize,
    pub device: u32,
    /// The instruction that issued the copy.
    pub pc: u64,
    /// The knowledge of the thread when it issued the copy.
    pub view: View,
    /// The slot of the thread.
    pub slot: u32,
    /// The solo step of the thread. Its own accesses up to this step happened before the copy.
    pub own: u32,
    /// The solo steps up to which the async proxy sees the thread's own writes to shared and to global memory.
    pub fenced: (u32, u32),
    pub runs: Vec<Run>,
    /// The address in shared memory, as the CTA that owns the memory sees it.
    pub shared: u32,
    pub swizzle_bytes: u32,
    pub to: TmaTarget,
}

/// The target of a copy by TMA.
#[derive(Debug)]
pub enum TmaTarget {
    /// The shared memory of a CTA. The barrier of that CTA with this index counts the bytes.
    Shared {
        cta: usize,
        barrier: usize,
        bytes: u32,
    },
    /// Global memory. The copy belongs to a bulk group. `read` holds the bytes once they have been read from shared
    /// memory.
    Global { group: u32, read: Option<Vec<u8>> },
}
