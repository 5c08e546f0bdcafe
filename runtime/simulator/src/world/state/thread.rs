//! Threads of kernels: their states, their views of memory order, and their waits.

use super::async_copies::AsyncCopies;
use super::tma::BulkGroups;
use crate::world::clock::{Release, View};
use crate::world::fiber::FiberYielder;
use crate::world::stamp::AccessKind;

/// The state of a thread: it can run, or it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// The thread can run.
    Ready,
    /// The thread waits for the end of a phase of the mbarrier at `address`.
    Barrier { address: u32, parity: u32 },
    /// The thread waits until a word that it has polled changes, or until time passes.
    Polling,
    /// The thread waits for other threads of its warp, CTA or cluster.
    Converging,
    /// The thread waits for its own bulk groups.
    BulkGroups,
    /// The thread waits for products of its warpgroup.
    Wgmma,
    /// The thread waits for the end of the launch before its own launch.
    GridBefore,
    /// The thread has returned.
    Ended,
}

/// The wait that the kernel has announced for a thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitSite {
    pub role: u32,
    pub wait: u32,
    pub peer: u32,
    pub index: u32,
    pub wanted: u32,
    /// The value that the kernel has seen so far. `None` if the word that the thread polls first has the value.
    pub seen: Option<u32>,
    /// The number of words in [`Thread::polled`] that the thread polled for earlier waits.
    pub polled_before: usize,
    pub pc: u64,
    pub since_ns: u64,
}

/// A word that a thread has loaded with a relaxed or an acquiring load.
#[derive(Clone, Copy, Debug)]
pub struct PolledWord {
    pub address: u64,
    pub bytes: usize,
    /// The value that the thread has seen.
    pub seen: u64,
}

/// A cache of the stamps of the latest accesses of a thread.
#[derive(Debug, Default)]
pub struct RecentStamps {
    /// The instruction, the solo step, the kind and the stamp of an access.
    accesses: [Option<(u64, u32, AccessKind, u32)>; 4],
    next: usize,
}

impl RecentStamps {
    /// Returns the stamp of an access.
    pub fn find(&self, pc: u64, solo_step: u32, kind: AccessKind) -> Option<u32> {
        let mut accesses = self.accesses.iter().flatten();
        let found = accesses.find(|access| (access.0, access.1, access.2) == (pc, solo_step, kind));
        found.map(|access| access.3)
    }

    /// Adds the stamp of an access in the place of the oldest one.
    pub fn add(&mut self, pc: u64, solo_step: u32, kind: AccessKind, stamp: u32) {
        self.accesses[self.next] = Some((pc, solo_step, kind, stamp));
        self.next = (self.next + 1) % self.accesses.len();
    }
}

/// A thread of a kernel.
#[derive(Debug)]
pub struct Thread {
    pub info: ThreadInfo,
    pub cta: usize,
    pub warp: usize,
    pub state: ThreadState,
    /// The instruction at which the thread was last blocked.
    pub pc: u64,
    /// The accesses that happened before the thread's next instruction.
    pub view: View,
    /// The index of the thread in `Shadow::solos`.
    pub slot: u32,
    /// The step of the thread alone, which grows when the thread publishes or fences by itself.
    pub solo_step: u32,
    /// The async proxy sees the thread's own writes to shared memory up to this solo step.
    pub fenced_shared: u32,
    /// The async proxy sees the thread's own writes to global memory up to this solo step.
    pub fenced_global: u32,
    /// Whether the thread has written shared memory since its last proxy fence.
    pub unfenced_shared: bool,
    /// Whether the thread has written global memory since its last proxy fence.
    pub unfenced_global: bool,
    /// The accesses that the thread's relaxed loads have seen. A fence adds them to `view`.
    pub seen: View,
    /// The knowledge that the last fence has published, and the scope of that fence.
    pub published: Option<(Release, u32)>,
    /// The stamps of the latest accesses.
    pub recent: RecentStamps,
    /// The words that the thread has polled since it last slept.
    pub polled: Vec<PolledWord>,
    pub slept: bool,
    pub wait_site: WaitSite,
    /// The number of polls that may return at once because simulated time passes.
    pub free_polls: u32,
    pub bulk: BulkGroups,
    pub async_copies: AsyncCopies,
    /// The result of the last operation that the lanes of its warp or the threads of its CTA performed together.
    pub result: u32,
    /// The thread's operands of such an operation.
    pub exchange: [u32; 5],
    /// The means by which the thread's fiber suspends itself.
    pub yielder: *const FiberYielder,
    /// An address in the frames of the suspended fiber, or null. The address is only a hint for the cache.
    pub frame: *const u8,
}

impl Thread {
    /// Begins to load the data that the thread needs when its fiber is resumed. The stacks of all fibers together do
    /// not fit the caches near the core.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        for offset in (-64..256).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch accesses no memory, at any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.frame.wrapping_offset(offset).cast()) };
        }
    }
}

/// The facts about a thread that kernels can read. The layout is equal to `mk::sim::Thread`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ThreadInfo {
    pub thread: u32,
    pub threads: u32,
    pub cta: u32,
    pub ctas: u32,
    pub cluster_rank: u32,
}
