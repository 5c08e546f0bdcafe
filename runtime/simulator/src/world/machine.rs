//! [`Machine`]: everything that kernels can observe while they run.
//!
//! The operations of kernels are `impl Machine` blocks in the modules beside this one, such as `access` and `tma`. They
//! work for the thread that runs now, [`Machine::current`].

use super::clock::{Clock, Component, JoinCache, Release};
use super::interface::Options;
use super::memory::GlobalMemory;
use super::report::Reports;
use super::shadow::Shadow;
use super::stamp::{AccessKind, NO_SLOT, Origin, Stamp};
use super::state::convergence::Warp;
use super::state::counters::{FreeCounters, StepCounter};
use super::state::launch::{Cta, Launch, SharedMemory};
use super::state::random::Random;
use super::state::sync_words::SyncWords;
use super::state::thread::{Thread, ThreadState};
use super::state::tma::TmaCopy;

/// Everything that kernels can observe. Launches, CTAs, warps and threads refer to each other by their indices here.
pub(super) struct Machine {
    pub options: Options,
    pub random: Random,
    pub now_ns: u64,
    /// Whether a wait has ended since simulated time last jumped.
    pub has_moved: bool,
    /// Whether a kernel has let the next kernel start since the driver last looked.
    pub has_allowed: bool,
    /// Whether a kernel has aborted.
    pub is_aborted: bool,
    pub memory: GlobalMemory,
    pub shadow: Shadow,
    /// The number of clock components in use.
    pub components: u32,
    pub launches: Vec<Option<Launch>>,
    pub ctas: Vec<Cta>,
    pub warps: Vec<Warp>,
    pub threads: Vec<Thread>,
    /// The warps that have a lane which can run.
    pub ready: Vec<usize>,
    pub tma_copies: Vec<TmaCopy>,
    pub sync_words: SyncWords,
    pub reports: Reports,
    pub join_cache: JoinCache,
    /// The knowledge that kernels have published to host memory.
    pub host: Clock,
    /// The knowledge and the accesses of the completed copies of the host.
    pub copied: Clock,
    /// The counters that no launch uses, by GPU.
    pub free_counters: Vec<FreeCounters>,
    /// The shared memory of CTAs that have ended, for new CTAs.
    pub unused_smem: Vec<SharedMemory>,
    /// The thread that runs now.
    pub current: usize,
}

impl Machine {
    /// Creates a machine without memory or work.
    pub fn new(options: Options) -> Self {
        // Without this, neighbouring seeds would give similar runs.
        let mut random = Random(options.seed ^ 0x6d6b_6572_6e65_6c00);
        random.next();
        Self {
            free_counters: (0..options.devices)
                .map(|_| FreeCounters::default())
                .collect(),
            options,
            random,
            now_ns: 1_000_000,
            has_moved: false,
            has_allowed: false,
            is_aborted: false,
            memory: Default::default(),
            shadow: Default::default(),
            unused_smem: Vec::new(),
            components: 0,
            launches: Vec::new(),
            ctas: Vec::new(),
            warps: Vec::new(),
            threads: Vec::new(),
            ready: Vec::new(),
            tma_copies: Vec::new(),
            sync_words: Default::default(),
            reports: Default::default(),
            join_cache: Default::default(),
            host: Default::default(),
            copied: Default::default(),
            current: 0,
        }
    }

    /// Forgets accesses to which no word of memory refers any more, if these may be many. No kernel may run.
    pub fn forget_old_accesses(&mut self) {
        if self.shadow.has_many_stamps() {
            self.shadow.forget_all_but(&mut self.memory.all_cells());
        }
    }

    /// Returns a new clock component.
    pub fn new_component(&mut self) -> Component {
        self.components += 1;
        self.components - 1
    }

    /// Takes a step counter for an object of `thread`.
    pub fn counter_for(&mut self, thread: usize) -> StepCounter {
        let device = self.ctas[self.threads[thread].cta].device;
        self.take_counter(device)
    }

    /// Returns the thread that runs now.
    pub fn thread(&mut self) -> &mut Thread {
        &mut self.threads[self.current]
    }

    /// Returns the CTA of `thread`.
    pub fn cta_of(&mut self, thread: usize) -> &mut Cta {
        let cta = self.threads[thread].cta;
        &mut self.ctas[cta]
    }

    /// Returns the origin of an access by `thread` at `pc`.
    pub fn origin(&self, thread: usize, pc: u64) -> Origin {
        let thread = &self.threads[thread];
        let cta = &self.ctas[thread.cta];
        Origin {
            device: cta.device,
            launch: cta.launch as u32,
            cta: cta.index,
            thread: thread.info.thread,
            pc,
        }
    }

    /// Returns the stamp of an access by `thread` in its current step.
    pub fn stamp(&mut self, thread: usize, kind: AccessKind, pc: u64) -> u32 {
        let t = &self.threads[thread];
        let (warp, solo_step) = (&self.warps[t.warp], t.solo_step);
        if let Some(stamp) = t.recent.find(pc, solo_step, kind)
            && self.shadow.stamps[stamp as usize].step == warp.step
        {
            return stamp;
        }
        let (component, step, slot) = (warp.component, warp.step, t.slot);
        let origin = self.origin(thread, pc);
        let stamp = self.shadow.stamp(Stamp {
            kind,
            component,
            step,
            slot,
            solo_step,
            origin,
        });
        let recent = &mut self.threads[thread].recent;
        recent.add(pc, solo_step, kind, stamp);
        stamp
    }

    /// Returns the stamp of an access by the async proxy. The access is complete at `step` of `component`.
    pub fn async_stamp(
        &mut self,
        thread: usize,
        (component, step): (Component, u32),
        pc: u64,
    ) -> u32 {
        let origin = self.origin(thread, pc);
        self.shadow.stamp(Stamp {
            kind: AccessKind::Async,
            component,
            step,
            slot: NO_SLOT,
            solo_step: 0,
            origin,
        })
    }

    /// Publishes everything that `thread` knows and did, and starts its next solo step.
    pub fn release(&mut self, thread: usize) -> Release {
        let slot = self.threads[thread].slot as usize;
        let component = match self.shadow.solos[slot] {
            Some(component) => component,
            None => {
                let component = self.new_component();
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

    /// Blocks the running thread at `pc`.
    pub fn block(&mut self, state: ThreadState, pc: u64) {
        let thread = self.thread();
        thread.state = state;
        thread.pc = pc;
    }

    /// Makes a blocked thread ready.
    pub fn wake(&mut self, thread: usize) {
        let t = &mut self.threads[thread];
        if t.state == ThreadState::Ended || t.state == ThreadState::Ready {
            return;
        }
        t.state = ThreadState::Ready;
        let warp = t.warp;
        let lane = thread - self.warps[warp].first_thread;
        if self.warps[warp].ready == 0 {
            self.ready.push(warp);
        }
        self.warps[warp].ready |= 1 << lane;
    }

    /// Fails the running kernel, for a reason that would end it on a GPU too.
    pub fn fail(&mut self, why: String) {
        let launch = self.ctas[self.threads[self.current].cta].launch;
        self.fail_launch(launch, why);
    }

    /// Fails a launch. The first reason is kept.
    pub fn fail_launch(&mut self, launch: usize, why: String) {
        if let Some(launch) = self.launches[launch].as_mut() {
            launch.failed.get_or_insert(why);
        }
    }
}
