//! The scheduler of a [`World`]: a seeded choice of the next warp, as unfair as the options require.

use super::calls;
use super::fiber::ResumeResult;
use super::interface::{Advance, Moment, Outcome};
use super::machine::Machine;
use super::simulation::{FIRST_JUMP_NS, World};
use super::speeds::Speeds;
use super::state::convergence::WARP;
use super::state::thread::ThreadState;

/// A jump of simulated time beyond any deadline: one day.
const LAST_JUMP_NS: u64 = 86_400_000_000_000;

/// The largest number of jumps in a row. After an abort, waits end one by one, in fewer jumps than this number.
const MOST_JUMPS: u32 = 20_000;

/// The number of warps that one call of `advance` picks.
const PICKS: u32 = 4000;

/// The polls in vain that return at once after simulated time has jumped. In the simulator's `mk/base.cuh`, a wait looks at
/// the clock after every poll. The first look starts its deadline, so a wait needs at least two polls.
const FREE_POLLS: u32 = 4;

impl Machine {
    /// Wakes waiting threads, so that they look at the clock.
    fn wake_with_free_polls(&mut self, threads: &[usize]) {
        for thread in threads {
            self.threads[*thread].free_polls = FREE_POLLS;
            self.wake(*thread);
        }
    }

    /// Picks a warp that can run. Returns its index in `ready`.
    fn pick(&mut self, speeds: &Speeds) -> Option<usize> {
        if self.ready.is_empty() {
            return None;
        }
        for _ in 0..24 {
            let index = self.random.below(self.ready.len());
            let warp = self.ready[index];
            let cta = &self.ctas[self.warps[warp].cta];
            let (device, cta) = (cta.device as usize, (cta.device * 7 + cta.index) as usize);
            let speed = speeds.devices[device] * speeds.ctas[cta % speeds.ctas.len()] / 100
                * speeds.warps[warp % speeds.warps.len()]
                / 100;
            if self.random.chance(speed) {
                return Some(index);
            }
        }
        Some(self.random.below(self.ready.len()))
    }
}

impl World {
    /// Runs work for a while.
    pub fn advance(&mut self) -> Advance {
        for _ in 0..PICKS {
            if std::mem::take(&mut self.machine.has_allowed) {
                return Advance::Busy;
            }
            self.speeds.count_pick(&mut self.machine.random);
            let copy_now = self.machine.random.chance(self.speeds.copies);
            if copy_now && self.copy_something() {
                continue;
            }
            if !self.run_warp() && !self.copy_something() {
                self.end_failed();
                let idle =
                    self.copies.is_empty() && self.machine.launches.iter().all(Option::is_none);
                if !self.machine.ready.is_empty() || self.machine.wake_pollers_of_host() {
                    continue;
                }
                return match (idle, self.finished.is_empty()) {
                    (true, _) => Advance::Idle,
                    (false, false) => Advance::Busy,
                    (false, true) => Advance::Stuck,
                };
            }
        }
        self.end_failed();
        Advance::Busy
    }

    /// Wakes the threads that wait for words of host memory that have changed. Returns whether a thread was woken.
    pub fn look_at_host(&mut self) -> bool {
        self.machine.wake_pollers_of_host()
    }

    /// Lets simulated time jump, so that deadlines in kernels pass, and returns the length of the jump in ns. This is
    /// called when all threads are stuck. With `report`, the first jump of a standstill also reports the deadlock.
    pub fn let_time_pass(&mut self, report: bool) -> u64 {
        let machine = &mut *self.machine;
        if report && self.jumps == 0 {
            machine.report_deadlock();
        }
        // After an abort, waits end one by one, each after it has read the abort words.
        if std::mem::take(&mut machine.has_moved) {
            self.jump_ns = FIRST_JUMP_NS;
        }
        self.jumps += 1;
        let jumped_ns = self.jump_ns;
        if jumped_ns > LAST_JUMP_NS || self.jumps > MOST_JUMPS {
            for launch in 0..machine.launches.len() {
                machine.fail_launch(launch, "the waits of the kernel never end".into());
            }
            return jumped_ns;
        }
        machine.now_ns += jumped_ns;
        // The jumps grow by less than a factor of two, so that a deadline passes before twice the deadline does.
        self.jump_ns += self.jump_ns * 9 / 10;
        let pollers: Vec<usize> = (0..machine.threads.len())
            .filter(|thread| machine.threads[*thread].state == ThreadState::Polling)
            .collect();
        if pollers.is_empty() || self.barriers_see_time {
            let at_barriers = |thread: &usize| {
                matches!(machine.threads[*thread].state, ThreadState::Barrier { .. })
            };
            let waking: Vec<usize> = (0..machine.threads.len()).filter(at_barriers).collect();
            machine.wake_with_free_polls(&waking);
        }
        machine.wake_with_free_polls(&pollers);
        jumped_ns
    }

    /// Performs a step of one copy by TMA or by the host. Returns false if no copy is in flight.
    fn copy_something(&mut self) -> bool {
        let tma_copies = self.machine.tma_copies.len();
        let all = tma_copies + self.copies.len();
        if all == 0 {
            return false;
        }
        let index = self.machine.random.below(all);
        if index < tma_copies {
            self.machine.advance_tma_copy(index);
        } else {
            let copy = self.copies.swap_remove(index - tma_copies);
            let done = self.machine.perform_host_work(copy);
            self.finished.push(done);
        }
        true
    }

    /// Runs the ready lanes of one warp until they wait. Returns false if no warp can run.
    fn run_warp(&mut self) -> bool {
        let Some(index) = self.machine.pick(&self.speeds) else {
            return false;
        };
        let warp = self.machine.ready.swap_remove(index);
        let lanes = std::mem::take(&mut self.machine.warps[warp].ready);
        let first = self.machine.warps[warp].first_thread;
        let start = self.machine.random.below(WARP);
        // Sometimes the warp diverges: lanes from this number on do not run now.
        let until = if self.machine.random.chance(10) {
            1 + self.machine.random.below(WARP)
        } else {
            WARP
        };
        let mut behind = 0;
        for step in 0..WARP {
            let lane = (start + step) % WARP;
            if lanes >> lane & 1 == 0 {
                continue;
            }
            if step >= until && behind | lanes & !(1 << lane) != 0 && lanes.count_ones() > 1 {
                behind |= 1 << lane;
                continue;
            }
            self.machine.threads[first + (lane + 1) % WARP].prefetch();
            self.run_thread(first + lane);
        }
        if behind != 0 {
            let machine = &mut self.machine;
            if machine.warps[warp].ready == 0 {
                machine.ready.push(warp);
            }
            machine.warps[warp].ready |= behind;
        }
        true
    }

    /// Resumes the fiber of a thread.
    fn run_thread(&mut self, thread: usize) {
        let Some(mut fiber) = self.fibers[thread].take() else {
            return;
        };
        self.machine.current = thread;
        self.machine.now_ns += 1;
        calls::enter(&raw mut *self.machine);
        let returned = fiber.resume();
        calls::enter(std::ptr::null_mut());
        match returned {
            ResumeResult::Waits => self.fibers[thread] = Some(fiber),
            ResumeResult::Ended | ResumeResult::Overran => {
                if fiber.end(&mut self.stacks) == ResumeResult::Overran {
                    // Other memory of the process may be overwritten, so nothing can continue safely.
                    eprintln!("mkernel-sim: a thread of a kernel has overflowed its stack");
                    std::process::abort();
                }
                let launch = self.machine.ctas[self.machine.threads[thread].cta].launch;
                if self.machine.thread_ended(thread) {
                    self.end(launch);
                }
            }
        }
    }

    /// Ends a launch, and forgets all CTAs and threads if it was the last one.
    fn end(&mut self, launch: usize) {
        let Some((task, known, failed)) = self.machine.end_launch(launch) else {
            return;
        };
        let outcome = failed.map_or(Outcome::Done, Outcome::Failed);
        self.finished.push((task, outcome, Moment(known)));
        if self.machine.launches.iter().all(Option::is_none) {
            self.machine.ctas.clear();
            self.machine.warps.clear();
            self.machine.threads.clear();
            self.machine.ready.clear();
            self.machine.sync_words.forget_pollers();
            self.fibers.clear();
            self.machine.forget_old_accesses();
        }
    }

    /// Ends the kernels that have failed, with all their threads.
    fn end_failed(&mut self) {
        for launch in 0..self.machine.launches.len() {
            let failed = self.machine.launches[launch].as_ref();
            let Some(ctas) = failed
                .filter(|launch| launch.failed.is_some())
                .map(|launch| launch.ctas.clone())
            else {
                continue;
            };
            for cta in ctas {
                let threads = self.machine.ctas[cta].threads;
                for thread in threads..threads + self.machine.ctas[cta].thread_count as usize {
                    if let Some(fiber) = self.fibers[thread].take() {
                        fiber.end(&mut self.stacks);
                    }
                }
            }
            self.end(launch);
        }
    }
}
