//! Kernels that start before the kernel before them on their stream has ended (programmatic dependent launch).

use super::clock::{Clock, View};
use super::interface::TaskId;
use super::machine::Machine;
use super::state::launch::Launch;
use super::state::thread::ThreadState;

impl Machine {
    /// Returns the launch of a task, if it has not ended.
    pub fn launch_of(&self, task: TaskId) -> Option<usize> {
        let is_of_task = |launch: &Option<Launch>| launch.as_ref().is_some_and(|l| l.task == task);
        self.launches.iter().position(is_of_task)
    }

    /// Records that the CTA of the running thread lets the kernel behind start.
    pub fn allow_grid_behind(&mut self) {
        let current = self.current;
        let cta = self.cta_of(current);
        let launch = cta.launch;
        if !std::mem::replace(&mut cta.allows_grid_behind, true) && self.allows_overlap(launch) {
            self.has_allowed = true;
        }
    }

    /// Returns whether every CTA of a launch has let the kernel behind start, or has ended. Returns false for a launch that
    /// still overlaps with the previous launch, so at most two kernels of a stream run at the same time.
    pub fn allows_overlap(&self, launch: usize) -> bool {
        let Some(launch) = &self.launches[launch] else {
            return false;
        };
        let allows =
            |cta: &usize| self.ctas[*cta].allows_grid_behind || self.ctas[*cta].running == 0;
        launch.failed.is_none() && launch.before.is_none() && launch.ctas.iter().all(allows)
    }

    /// Returns whether the launch before the running thread's launch has ended. If so, the thread gets the knowledge at the end of
    /// that launch. Otherwise this blocks the thread until that launch has ended.
    pub fn wait_for_grid_before(&mut self, pc: u64) -> bool {
        let index = self.ctas[self.threads[self.current].cta].launch;
        let Some(launch) = &self.launches[index] else {
            return true;
        };
        if launch.before.is_some() {
            self.block(ThreadState::GridBefore, pc);
            return false;
        }
        let known = launch.known_before.clone();
        self.thread().view.join(&View::all(&known));
        true
    }

    /// Lets the launch behind `ended` continue, if it overlaps with that.
    pub fn end_overlap(&mut self, ended: usize, known: &Clock) {
        for index in ended + 1..self.launches.len() {
            let Some(launch) = &mut self.launches[index] else {
                continue;
            };
            if launch.before != Some(ended) {
                continue;
            }
            launch.before = None;
            launch.known_before = known.clone();
            for cta in launch.ctas.clone() {
                let first = self.ctas[cta].threads;
                for thread in first..first + self.ctas[cta].thread_count as usize {
                    if self.threads[thread].state == ThreadState::GridBefore {
                        self.wake(thread);
                    }
                }
            }
        }
    }
}
