//! [`Machine`]: all that kernels see of the world while they run.

use super::barrier::Barrier;
use super::clock::{Clock, Component, Lately, Published, Release, View};
use super::fiber::FiberYielder;
use super::gather::Gather;
use super::launch::{CtaSlot, Free, Strand};
use super::memory::Memory;
use super::mma::Mma;
use super::report::Reports;
use super::shadow::{Cell, NO_SLOT, Shadow, Stamp, WORD_BYTES, Way, Who};
use super::sync::Locations;
use super::tma::{Bulk, Operation};
use super::{Options, TaskId};

pub(super) const WARP: usize = 32;
pub(super) const WARPGROUP_WARPS: usize = 4;

/// Where shared memory begins in its window; the twins start dynamic memory here too.
pub(super) const SHARED_START: u32 = 1040;
/// Bits of a shared address above which the CTA of a cluster is told.
pub(super) const SHARED_BITS: u32 = 24;

/// A kernel on its way.
#[derive(Debug)]
pub(super) struct Launch {
    pub task: TaskId,
    pub device: u32,
    pub ctas: Vec<usize>,
    pub running: u32,
    pub failed: Option<String>,
    /// What has been known at its start, and by its threads at their end.
    pub known: Clock,
}

/// A CTA of a launch.
#[derive(Debug)]
pub(super) struct Cta {
    pub launch: usize,
    pub device: u32,
    pub index: u32,
    /// CTAs of its cluster, in order, itself included.
    pub cluster: Vec<usize>,
    pub smem: Smem,
    pub barriers: Vec<Barrier>,
    pub named: Vec<Meeting>,
    /// Of its cluster; that of the first CTA counts.
    pub cluster_meeting: Meeting,
    /// Its first thread.
    pub threads: usize,
    pub thread_count: u32,
    pub running: u32,
    pub mmas: Vec<Mma>,
    pub slot: CtaSlot,
}

/// Shared memory, and who accessed its words.
#[derive(Debug, Default)]
pub(super) struct Smem {
    pub bytes: Vec<u8>,
    pub cells: Vec<Cell>,
}

impl Smem {
    /// As a CTA finds it: nothing in it was ever written.
    pub fn renew(&mut self, bytes: usize) {
        self.bytes.clear();
        self.bytes.resize(bytes, 0xff);
        self.cells.clear();
        self.cells
            .resize(bytes.div_ceil(WORD_BYTES), Cell::default());
    }
}

/// Threads that wait for each other: a named barrier, or the lanes of a warp.
#[derive(Debug, Default)]
pub(super) struct Meeting {
    pub arrived: Vec<usize>,
    /// Of the first that arrived: who, where, and how many it awaits.
    pub first: usize,
    pub place: u64,
    pub expected: u32,
    /// Those that have come, and did not wait; what they had done.
    pub went_on: u32,
    pub published: Published,
}

impl Meeting {
    /// How many have come.
    pub fn count(&self) -> u32 {
        self.arrived.len() as u32 + self.went_on
    }
}

/// What 32 threads have in common.
#[derive(Debug)]
pub(super) struct Warp {
    pub cta: usize,
    pub component: Component,
    /// Grows whenever its threads meet; accesses since then are of this step.
    pub step: u32,
    pub first_thread: usize,
    pub ready: u32,
    pub meeting: Meeting,
}

/// Why a thread does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// For the phase of a barrier in shared memory.
    Barrier {
        address: u32,
        parity: u32,
    },
    /// Until a word changes that it polled, or time passes.
    Polling,
    /// For the other threads of its warp, CTA or cluster.
    Meeting,
    /// For bulk groups of its own.
    Bulk,
    /// For products of its warpgroup.
    Mma,
    Ended,
}

/// What a thread says that it waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Awaited {
    pub role: u32,
    pub wait: u32,
    pub peer: u32,
    pub index: u32,
    pub wanted: u32,
    /// What it has seen so far; none if the word says it that it polls first.
    pub seen: Option<u32>,
    /// Words that it had polled before, for other waits.
    pub polled_before: usize,
    pub place: u64,
    pub since_ns: u64,
}

/// A word that was loaded by an ordered or relaxed load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Polled {
    pub address: u64,
    pub bytes: usize,
    pub seen: u64,
}

/// A thread.
#[derive(Debug)]
pub(super) struct Thread {
    pub info: ThreadInfo,
    pub cta: usize,
    pub warp: usize,
    pub state: State,
    pub place: u64,
    pub view: View,
    pub slot: u32,
    /// Grows when it publishes or fences on its own.
    pub solo_step: u32,
    /// Own writes up to this step are known to the async proxy, in shared and in global memory.
    pub fenced_shared: u32,
    pub fenced_global: u32,
    /// Writes since then.
    pub unfenced_shared: bool,
    pub unfenced_global: bool,
    /// What relaxed loads have seen, for a fence to acquire; what the last fence published.
    pub seen: View,
    pub published: Option<(Release, u32)>,
    pub stamps: Vec<(u64, u32, Way, u32)>,
    /// Words that it loaded since it slept last, and what it saw.
    pub polled: Vec<Polled>,
    pub slept: bool,
    pub awaited: Awaited,
    /// Polls left that do not wait, while time passes.
    pub free_polls: u32,
    pub bulk: Bulk,
    pub gather: Gather,
    pub result: u32,
    pub exchange: [u32; 5],
    pub yielder: *const FiberYielder,
}

/// What the twins know of a thread: `mk::sim::Thread`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ThreadInfo {
    pub thread: u32,
    pub threads: u32,
    pub cta: u32,
    pub ctas: u32,
    pub cluster_rank: u32,
}

/// All that kernels see.
pub(super) struct Machine {
    pub options: Options,
    pub random: Random,
    pub now_ns: u64,
    /// Whether a wait has ended since time passed.
    pub has_moved: bool,
    pub memory: Memory,
    pub shadow: Shadow,
    pub components: u32,
    pub launches: Vec<Option<Launch>>,
    pub ctas: Vec<Cta>,
    pub warps: Vec<Warp>,
    pub threads: Vec<Thread>,
    pub ready: Vec<usize>,
    pub operations: Vec<Operation>,
    pub locations: Locations,
    pub reports: Reports,
    pub lately: Lately,
    pub host: Clock,
    /// What copies of the host's that are done had seen, and did.
    pub copied: Clock,
    pub free: Vec<Free>,
    /// Shared memory of CTAs that ended.
    pub unused_smem: Vec<Smem>,
    /// The thread that runs.
    pub current: usize,
}

/// A small generator: equal seeds give equal runs on every machine and in every version (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent as usize
    }
}

impl Machine {
    pub fn component(&mut self) -> Component {
        self.components += 1;
        self.components - 1
    }

    /// A counter of its own for something of `thread`'s.
    pub fn strand_of(&mut self, thread: usize) -> Strand {
        let device = self.ctas[self.threads[thread].cta].device;
        self.strand(device)
    }

    pub fn thread(&mut self) -> &mut Thread {
        &mut self.threads[self.current]
    }

    pub fn cta_of(&mut self, thread: usize) -> &mut Cta {
        let cta = self.threads[thread].cta;
        &mut self.ctas[cta]
    }

    pub fn who(&self, thread: usize, place: u64) -> Who {
        let thread = &self.threads[thread];
        let cta = &self.ctas[thread.cta];
        Who {
            device: cta.device,
            launch: cta.launch as u32,
            cta: cta.index,
            thread: thread.info.thread,
            place,
        }
    }

    /// The stamp of an access by `thread` now.
    pub fn stamp(&mut self, thread: usize, way: Way, place: u64) -> u32 {
        let t = &self.threads[thread];
        let (warp, solo_step) = (&self.warps[t.warp], t.solo_step);
        let known = t
            .stamps
            .iter()
            .find(|(at, solo, how, _)| *at == place && *solo == solo_step && *how == way);
        if let Some((.., stamp)) = known
            && self.shadow.stamps[*stamp as usize].step == warp.step
        {
            return *stamp;
        }
        let (component, step, slot) = (warp.component, warp.step, t.slot);
        let who = self.who(thread, place);
        let stamp = self.shadow.stamp(Stamp {
            way,
            component,
            step,
            slot,
            solo_step,
            who,
        });
        let stamps = &mut self.threads[thread].stamps;
        if stamps.len() == 4 {
            stamps.remove(0);
        }
        stamps.push((place, solo_step, way, stamp));
        stamp
    }

    /// The stamp of an access by the async proxy that is over at `step` of `component`.
    pub fn async_stamp(
        &mut self,
        thread: usize,
        (component, step): (Component, u32),
        place: u64,
    ) -> u32 {
        let who = self.who(thread, place);
        self.shadow.stamp(Stamp {
            way: Way::Async,
            component,
            step,
            slot: NO_SLOT,
            solo_step: 0,
            who,
        })
    }

    /// What `thread` publishes now to whoever acquires it: all that it knows and did.
    pub fn release(&mut self, thread: usize) -> Release {
        let slot = self.threads[thread].slot as usize;
        let component = match self.shadow.solos[slot] {
            Some(component) => component,
            None => {
                let component = self.component();
                self.shadow.solos[slot] = Some(component);
                component
            }
        };
        let t = &mut self.threads[thread];
        let whole = |unfenced: bool, fenced: u32| if unfenced { fenced } else { t.solo_step };
        let release = Release {
            view: t.view.clone(),
            component,
            generic: t.solo_step,
            shared: whole(t.unfenced_shared, t.fenced_shared),
            global: whole(t.unfenced_global, t.fenced_global),
        };
        t.solo_step += 1;
        release
    }

    /// Blocks the running thread.
    pub fn block(&mut self, state: State, place: u64) {
        let thread = self.thread();
        thread.state = state;
        thread.place = place;
    }

    /// Lets a blocked thread run.
    pub fn wake(&mut self, thread: usize) {
        let t = &mut self.threads[thread];
        if t.state == State::Ended || t.state == State::Ready {
            return;
        }
        t.state = State::Ready;
        let warp = t.warp;
        let lane = thread - self.warps[warp].first_thread;
        if self.warps[warp].ready == 0 {
            self.ready.push(warp);
        }
        self.warps[warp].ready |= 1 << lane;
    }

    /// Ends the running kernel for a reason that would have ended it on a GPU too.
    pub fn fail(&mut self, why: String) {
        let launch = self.ctas[self.threads[self.current].cta].launch;
        self.fail_launch(launch, why);
    }

    pub fn fail_launch(&mut self, launch: usize, why: String) {
        if let Some(launch) = self.launches[launch].as_mut() {
            launch.failed.get_or_insert(why);
        }
    }
}
