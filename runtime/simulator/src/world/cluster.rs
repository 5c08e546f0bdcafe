//! Clusters: CTAs that can access each other's shared memory until a CTA ends.

use super::machine::Machine;
use super::stamp::{AccessKind, Accessor};
use super::state::launch::SHARED_START;
use super::state::thread::ThreadState;

impl Machine {
    /// Waits for all threads of the cluster that have not ended. Returns false if the running thread must wait, and
    /// true if it is the last one.
    pub fn sync_cluster(&mut self, pc: u64) -> bool {
        let current = self.current;
        let first = self.ctas[self.threads[current].cta].cluster[0];
        let convergence = &mut self.ctas[first].cluster_convergence;
        convergence.arrived.push(current);
        if !self.cluster_is_whole(first) {
            self.block(ThreadState::Converging, pc);
            return false;
        }
        let arrived = std::mem::take(&mut self.ctas[first].cluster_convergence.arrived);
        self.release_converged(arrived)
    }

    /// Returns whether all running threads of the cluster with this first CTA have arrived.
    fn cluster_is_whole(&self, first: usize) -> bool {
        let Some(cta) = self.ctas.get(first) else {
            return false;
        };
        let running: u32 = cta.cluster.iter().map(|cta| self.ctas[*cta].running).sum();
        cta.cluster_convergence.arrived.len() == running as usize
    }

    /// Handles the end of a thread of `cta`. The other threads of the cluster no longer wait for this thread.
    pub fn thread_left_cluster(&mut self, cta: usize) {
        let first = self.ctas[cta].cluster[0];
        if self.cluster_is_whole(first) {
            let arrived = std::mem::take(&mut self.ctas[first].cluster_convergence.arrived);
            if !arrived.is_empty() {
                self.release_converged(arrived);
            }
        }
    }

    /// Reports a mistake if `cta`, whose shared memory is about to be accessed, has ended.
    pub fn check_running(&mut self, cta: usize, what: &str, pc: u64) {
        if self.ctas[cta].running == 0 {
            let text = format!(
                "{what} in the shared memory of CTA {}, which has ended",
                self.ctas[cta].index
            );
            self.report_at(pc, "ended CTA", text);
        }
    }

    /// Checks that all accesses of other CTAs to the shared memory of `cta` happen before its end. `thread` is its last
    /// thread.
    pub fn check_accesses_before_end(&mut self, cta: usize, thread: usize) {
        if self.ctas[cta].cluster.len() == 1 {
            return;
        }
        let (first, count) = (self.ctas[cta].threads, self.ctas[cta].thread_count as usize);
        // The end of the CTA happens after the end of each of its threads.
        let mut known = self.threads[thread].view.generic.clone();
        for thread in &self.threads[first..first + count] {
            known.join(&thread.view.generic);
            let warp = &self.warps[thread.warp];
            known.raise(warp.component, warp.step);
            if let Some(component) = self.shadow.solos[thread.slot as usize] {
                known.raise(component, thread.solo_step);
            }
        }
        let pc = self.threads[thread].pc;
        let stamp = self.stamp(thread, AccessKind::Weak, pc);
        let by = Accessor {
            stamp,
            generic: &[&known],
            proxy: None,
            slot: self.threads[thread].slot,
            own: u32::MAX,
            fenced: 0,
        };
        let mut found = Vec::new();
        let note = |_, earlier, word| found.push((earlier, word));
        let Self { ctas, shadow, .. } = self;
        shadow.write(&mut ctas[cta].smem.cells, &by, note);
        let index = ctas[cta].index;
        for (earlier, word) in found {
            let origin = self.shadow.stamps[earlier as usize].origin;
            if origin.cta == index {
                continue;
            }
            let text = format!(
                "CTA {index} may end before another CTA accesses its shared memory at {:#x}: there is no cluster_sync or wait between them",
                SHARED_START as usize + 4 * word
            );
            let ends = self.origin(thread, pc);
            let parts = vec![("the access".into(), origin), ("the end".into(), ends)];
            self.reports.add("ended CTA", text, parts);
        }
    }
}
