//! Operations that the lanes of a warp or the threads of a CTA perform together.

use super::machine::Machine;
use super::state::convergence::WARP;
use super::state::thread::ThreadState;

/// An operation that all lanes of a warp perform together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarpOperation {
    /// `__syncwarp`: every lane sees the earlier accesses of all lanes.
    Sync,
    /// `elect.sync`: one lane is elected.
    Elect,
    /// `shfl.sync.idx`: each lane gets the value of the lane that it asks for.
    Shuffle,
    /// `shfl.sync.bfly`: each lane gets the value of the lane whose number differs in the bits of `mask`.
    ShuffleXor { mask: u32 },
    /// `stmatrix`: matrices from registers to shared memory.
    StoreMatrix { count: u32 },
    /// `ldmatrix`: matrices from shared memory to registers.
    LoadMatrix { count: u32, transpose: bool },
}

/// The number of named barriers of a CTA (PTX ISA, "bar").
const NAMED_BARRIERS: usize = 16;

impl Machine {
    /// Handles the arrival of a lane at an operation of its warp. The last lane performs the operation for all lanes
    /// and wakes the other lanes. Returns false if the lane must wait.
    pub fn converge_warp(&mut self, what: WarpOperation, pc: u64) -> bool {
        let current = self.current;
        let warp = self.threads[current].warp;
        let convergence = &mut self.warps[warp].convergence;
        let first = convergence.pc;
        if convergence.arrived.is_empty() {
            convergence.pc = pc;
        }
        convergence.arrived.push(current);
        if first != pc && convergence.arrived.len() > 1 {
            let text = format!(
                "a lane performs {what:?}, but other lanes of its warp have arrived at another instruction"
            );
            let thread = self.warps[warp].convergence.arrived[0];
            self.report_pair((current, pc), (thread, first), "warp diverged", text);
        }
        if self.warps[warp].convergence.arrived.len() < WARP {
            self.block(ThreadState::Converging, pc);
            return false;
        }
        self.warps[warp].convergence.arrived.clear();
        let first = self.warps[warp].first_thread;
        let lanes: [usize; WARP] = std::array::from_fn(|lane| first + lane);
        self.perform(what, &lanes, pc);
        for thread in lanes.into_iter().filter(|thread| *thread != current) {
            self.wake(thread);
        }
        true
    }

    /// Performs a warp operation. `arrived` holds the threads of all lanes in their order.
    fn perform(&mut self, what: WarpOperation, arrived: &[usize], pc: u64) {
        match what {
            WarpOperation::Sync => self.sync(arrived),
            WarpOperation::Elect => {
                // The PTX ISA does not say which lane is elected. The simulator elects one lane throughout a run.
                let leader = (self.options.seed as usize ^ self.options.seed as usize >> 7) % WARP;
                for (lane, thread) in arrived.iter().enumerate() {
                    self.threads[*thread].result = u32::from(lane == leader);
                }
            }
            WarpOperation::Shuffle => {
                for thread in arrived {
                    let lane = self.threads[*thread].exchange[1];
                    let asked = arrived[lane as usize % WARP];
                    self.threads[*thread].result = self.threads[asked].exchange[0];
                }
            }
            WarpOperation::ShuffleXor { mask } => {
                let values: Vec<u32> = arrived
                    .iter()
                    .map(|thread| self.threads[*thread].exchange[0])
                    .collect();
                for (lane, thread) in arrived.iter().enumerate() {
                    self.threads[*thread].result = values[(lane ^ mask as usize) % WARP];
                }
            }
            WarpOperation::StoreMatrix { count } => self.store_matrices(arrived, count, pc),
            WarpOperation::LoadMatrix { count, transpose } => {
                self.load_matrices(arrived, count, transpose, pc)
            }
        }
    }

    /// Makes everything that the arrived threads knew and did known to all arrived threads. Their warps start a new step.
    fn sync(&mut self, arrived: &[usize]) {
        let mut all = self.threads[arrived[0]].view.clone();
        let mut warps: Vec<usize> = arrived
            .iter()
            .map(|thread| self.threads[*thread].warp)
            .collect();
        warps.dedup();
        for pair in arrived.windows(2) {
            let (before, view) = (&self.threads[pair[0]].view, &self.threads[pair[1]].view);
            // Neighbouring threads usually share their view.
            if !view.is_same(before) {
                all.join(view);
            }
        }
        for warp in &warps {
            let (component, step, first) = {
                let warp = &self.warps[*warp];
                (warp.component, warp.step, warp.first_thread)
            };
            let lanes = &self.threads[first..first + WARP];
            let all = all.clocks_mut();
            all.generic.raise(component, step);
            if lanes.iter().all(|lane| !lane.unfenced_shared) {
                all.shared.raise(component, step);
            }
            if lanes.iter().all(|lane| !lane.unfenced_global) {
                all.global.raise(component, step);
            }
            self.warps[*warp].step += 1;
        }
        for thread in arrived {
            self.threads[*thread].view = all.clone();
        }
    }

    /// Waits at named barrier `barrier` for `expected` threads. Returns false if the running thread must wait.
    pub fn sync_cta(&mut self, barrier: u32, expected: u32, pc: u64) -> bool {
        let current = self.current;
        if !self.enter_named(barrier, expected, pc) {
            self.block(ThreadState::Converging, pc);
            return false;
        }
        self.cta_of(current).named[barrier as usize]
            .arrived
            .push(current);
        if !self.is_complete(barrier) {
            self.block(ThreadState::Converging, pc);
            return false;
        }
        self.release_named(barrier);
        true
    }

    /// Arrives at named barrier `barrier` without waiting. The waiting threads see all earlier accesses of the running
    /// thread.
    pub fn arrive_cta(&mut self, barrier: u32, expected: u32, pc: u64) {
        let current = self.current;
        if !self.enter_named(barrier, expected, pc) {
            return;
        }
        let release = self.release(current);
        let convergence = &mut self.cta_of(current).named[barrier as usize];
        convergence.arrived_without_wait += 1;
        convergence.published.add(&release);
        if self.is_complete(barrier) {
            self.release_named(barrier);
        }
    }

    /// Checks the number of a named barrier, and that all threads pass the same number of threads. Returns false if
    /// the barrier does not exist.
    fn enter_named(&mut self, barrier: u32, expected: u32, pc: u64) -> bool {
        let current = self.current;
        if barrier as usize >= NAMED_BARRIERS
            || expected == 0
            || !expected.is_multiple_of(WARP as u32)
        {
            let text = format!(
                "barrier {barrier} for {expected} threads: barriers have the numbers 0 to 15, and the number of threads must be a multiple of 32"
            );
            self.report_at(pc, "named barrier", text.clone());
            self.fail(text);
            return false;
        }
        let cta = self.cta_of(current);
        cta.named.resize_with(NAMED_BARRIERS, Default::default);
        let convergence = &mut cta.named[barrier as usize];
        if convergence.count() == 0 {
            (convergence.expected, convergence.pc, convergence.first) = (expected, pc, current);
        }
        let (first, first_pc, before) = (convergence.first, convergence.pc, convergence.expected);
        if before != expected {
            let text = format!(
                "a thread arrives at barrier {barrier} for {expected} threads, but another thread has arrived at it for {before} threads"
            );
            self.report_pair((current, pc), (first, first_pc), "named barrier", text);
            self.cta_of(current).named[barrier as usize].expected = expected;
        }
        true
    }

    /// Returns whether enough threads have arrived at a named barrier.
    fn is_complete(&mut self, barrier: u32) -> bool {
        let cta = self.cta_of(self.current);
        let convergence = &cta.named[barrier as usize];
        // __syncthreads does not wait for threads that have ended.
        let expected = if barrier == 0 {
            convergence.expected.min(cta.running)
        } else {
            convergence.expected
        };
        convergence.count() >= expected
    }

    /// Wakes the threads that wait at a named barrier, after all have arrived.
    fn release_named(&mut self, barrier: u32) {
        let convergence = &mut self.cta_of(self.current).named[barrier as usize];
        let room = Vec::with_capacity(convergence.arrived.len());
        let arrived = std::mem::replace(&mut convergence.arrived, room);
        let published = std::mem::take(&mut convergence.published).into_view();
        convergence.arrived_without_wait = 0;
        if arrived.is_empty() {
            return;
        }
        for thread in &arrived {
            self.join_cache
                .join(&mut self.threads[*thread].view, &published);
        }
        self.release_converged(arrived);
    }

    /// Handles the end of a thread of `cta`. `__syncthreads` may have waited for this thread.
    pub fn thread_left_cta(&mut self, cta: usize) {
        let running = self.ctas[cta].running as usize;
        if let Some(convergence) = self.ctas[cta].named.first_mut()
            && convergence.arrived.len() == running
            && running > 0
        {
            let arrived = std::mem::take(&mut convergence.arrived);
            self.release_converged(arrived);
        }
    }

    /// Synchronises threads that have all arrived, and wakes the waiting threads. The last thread calls this. Returns
    /// true.
    pub fn release_converged(&mut self, mut arrived: Vec<usize>) -> bool {
        arrived.sort_unstable();
        self.sync(&arrived);
        // The result of `__syncthreads_or`: whether a thread has passed a value other than zero.
        let any = arrived.iter().any(|t| self.threads[*t].exchange[0] != 0);
        for thread in &arrived {
            self.threads[*thread].result = u32::from(any);
        }
        let current = self.current;
        for thread in arrived.into_iter().filter(|thread| *thread != current) {
            self.wake(thread);
        }
        true
    }
}
