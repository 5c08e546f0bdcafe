//! The end of threads, CTAs and kernels, and the checks for unfinished operations.

use super::clock::{Clock, View};
use super::interface::TaskId;
use super::machine::Machine;
use super::state::convergence::WARP;
use super::state::counters::CtaCounters;
use super::state::launch::Launch;
use super::state::thread::ThreadState;
use super::state::tma::{TmaCopy, TmaTarget};

impl Machine {
    /// Handles the return of a thread. Returns whether the thread was the last thread of its launch.
    pub fn thread_ended(&mut self, thread: usize) -> bool {
        self.threads[thread].state = ThreadState::Ended;
        let cta = self.threads[thread].cta;
        let launch = self.ctas[cta].launch;
        self.ctas[cta].running -= 1;
        if self.ctas[cta].running == 0 {
            self.check_copies_left(cta, thread);
            self.check_barriers_left(cta, thread);
            self.check_accesses_before_end(cta, thread);
        }
        self.thread_left_cta(cta);
        self.thread_left_cluster(cta);
        let Some(launch) = self.launches[launch].as_mut() else {
            return false;
        };
        launch.running -= 1;
        launch.running == 0
    }

    /// Reports copies by TMA that still need the shared memory of `cta`, which ends with `thread`.
    fn check_copies_left(&mut self, cta: usize, thread: usize) {
        let tma_copies = std::mem::take(&mut self.tma_copies);
        let needs_cta = |copy: &TmaCopy| self.cta_needed_by(copy) == cta;
        let (left, others): (Vec<_>, Vec<_>) = tma_copies.into_iter().partition(needs_cta);
        self.tma_copies = others;
        for copy in &left {
            self.current = copy.thread;
            let text = "a CTA ended before this copy from or to its shared memory was complete";
            self.report_at(copy.pc, "copy left behind", text.into());
        }
        self.current = thread;
    }

    /// Returns the CTA that must not end before `copy` is complete.
    fn cta_needed_by(&self, copy: &TmaCopy) -> usize {
        match copy.to {
            TmaTarget::Shared { cta, .. } => cta,
            TmaTarget::Global { .. } => self.threads[copy.thread].cta,
        }
    }

    /// Reports barriers of `cta` with an incomplete phase. `cta` ends with `thread`.
    fn check_barriers_left(&mut self, cta: usize, thread: usize) {
        let partial: Vec<String> = self.ctas[cta]
            .barriers
            .iter()
            .filter(|barrier| barrier.pending != barrier.count || barrier.bytes != 0)
            .map(|barrier| {
                format!(
                    "{:#x} lacks {} of {} arrivals and {} bytes",
                    barrier.address, barrier.pending, barrier.count, barrier.bytes
                )
            })
            .collect();
        if !partial.is_empty() {
            let text = format!(
                "a CTA ended in the middle of a phase: barrier {}",
                partial.join(", ")
            );
            let pc = self.threads[thread].pc;
            self.report_at(pc, "barrier under-arrived", text);
        }
    }

    /// Ends a launch. Returns its task, its knowledge with its own steps, and the reason of its failure, if any. Its
    /// counters and its shared memory become free for later launches.
    pub fn end_launch(&mut self, launch: usize) -> Option<(TaskId, Clock, Option<String>)> {
        let Launch {
            task,
            device,
            ctas,
            mut known,
            failed,
            ..
        } = self.launches[launch].take()?;
        self.tma_copies.retain(|copy| copy.launch != launch);
        for cta in ctas {
            self.end_cta(device, cta, &mut known);
        }
        self.end_overlap(launch, &known);
        self.ready
            .retain(|warp| self.ctas[self.warps[*warp].cta].launch != launch);
        Some((task, known, failed))
    }

    /// Adds the knowledge and the steps of a CTA to `known`, and frees its counters and its shared memory.
    fn end_cta(&mut self, device: u32, cta: usize, known: &mut Clock) {
        let (first, count) = (self.ctas[cta].threads, self.ctas[cta].thread_count as usize);
        let mut counters = std::mem::take(&mut self.ctas[cta].counters);
        for index in 0..count {
            self.end_thread(device, first + index, index, &mut counters, known);
        }
        let cta = &mut self.ctas[cta];
        self.unused_smem.push(std::mem::take(&mut cta.smem));
        let barriers = std::mem::take(&mut cta.barriers)
            .into_iter()
            .map(|barrier| (barrier.counter, barrier.phases + 1));
        let mmas = std::mem::take(&mut cta.mmas);
        let mmas = mmas
            .iter()
            .filter_map(|mma| Some((mma.counter?, mma.groups_done + 1)));
        for (counter, used) in barriers.chain(mmas).collect::<Vec<_>>() {
            known.raise(counter.component, counter.base + used);
            self.return_counter(device, counter, used);
        }
        self.free_counters[device as usize].ctas.push(counters);
    }

    /// Adds the knowledge and the steps of a thread to `known`. `index` is the number of the thread within the CTA of
    /// `counters`.
    fn end_thread(
        &mut self,
        device: u32,
        thread: usize,
        index: usize,
        counters: &mut CtaCounters,
        known: &mut Clock,
    ) {
        let t = &mut self.threads[thread];
        t.state = ThreadState::Ended;
        known.join(&t.view.generic);
        counters.solo_steps[index] = t.solo_step;
        let bulk = std::mem::take(&mut t.bulk);
        let (slot, solo_step, warp) = (t.slot as usize, t.solo_step, t.warp);
        t.view = View::default();
        t.seen = View::default();
        t.published = None;
        if let Some(component) = self.shadow.solos[slot] {
            known.raise(component, solo_step);
        }
        if let Some((reads, writes)) = bulk.counters {
            for counter in [reads, writes] {
                known.raise(counter.component, counter.base + bulk.committed + 1);
                self.return_counter(device, counter, bulk.committed + 1);
            }
        }
        if index.is_multiple_of(WARP) {
            let warp = &self.warps[warp];
            known.raise(warp.component, warp.step);
            counters.warps[index / WARP].1 = warp.step;
        }
    }
}
