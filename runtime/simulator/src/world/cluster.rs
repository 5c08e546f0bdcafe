//! Clusters: CTAs that reach each other's shared memory, while all of them live.

use super::machine::{Machine, SHARED_START, State};
use super::shadow::{Accessor, Way};

impl Machine {
    /// All threads of a cluster that have not ended; false if the thread waits.
    pub fn meet_cluster(&mut self, place: u64) -> bool {
        let current = self.current;
        let first = self.ctas[self.threads[current].cta].cluster[0];
        let meeting = &mut self.ctas[first].cluster_meeting;
        meeting.arrived.push(current);
        if !self.cluster_is_whole(first) {
            self.block(State::Meeting, place);
            return false;
        }
        let arrived = std::mem::take(&mut self.ctas[first].cluster_meeting.arrived);
        self.part(arrived)
    }

    fn cluster_is_whole(&self, first: usize) -> bool {
        let Some(cta) = self.ctas.get(first) else {
            return false;
        };
        let running: u32 = cta.cluster.iter().map(|cta| self.ctas[*cta].running).sum();
        cta.cluster_meeting.arrived.len() == running as usize
    }

    /// A thread of `cta` has ended: others of its cluster do not wait for it.
    pub fn leave_cluster(&mut self, cta: usize) {
        let first = self.ctas[cta].cluster[0];
        if self.cluster_is_whole(first) {
            let arrived = std::mem::take(&mut self.ctas[first].cluster_meeting.arrived);
            if !arrived.is_empty() {
                self.part(arrived);
            }
        }
    }

    /// The shared memory of `cta` is about to be accessed: the CTA must not have ended.
    pub fn check_running(&mut self, cta: usize, what: &str, place: u64) {
        if self.ctas[cta].running == 0 {
            let text = format!(
                "{what} in the shared memory of CTA {}, which has ended",
                self.ctas[cta].index
            );
            self.find_at(place, "ended CTA", text);
        }
    }

    /// `cta` ends with `thread`: whatever others of its cluster did in its shared memory must have come before.
    pub fn check_reached(&mut self, cta: usize, thread: usize) {
        if self.ctas[cta].cluster.len() == 1 {
            return;
        }
        let (first, count) = (self.ctas[cta].threads, self.ctas[cta].thread_count as usize);
        // The CTA may end once each of its threads may.
        let mut known = self.threads[thread].view.generic.clone();
        for thread in &self.threads[first..first + count] {
            known.join(&thread.view.generic);
            let warp = &self.warps[thread.warp];
            known.raise(warp.component, warp.step);
            if let Some(component) = self.shadow.solos[thread.slot as usize] {
                known.raise(component, thread.solo_step);
            }
        }
        let place = self.threads[thread].place;
        let stamp = self.stamp(thread, Way::Weak, place);
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
            let who = self.shadow.stamps[earlier as usize].who;
            if who.cta == index {
                continue;
            }
            let text = format!(
                "CTA {index} may end before its shared memory at {:#x} is accessed by another CTA: no cluster_sync or wait stands between them",
                SHARED_START as usize + 4 * word
            );
            let ends = self.who(thread, place);
            let parts = vec![("the access".into(), who), ("the end".into(), ends)];
            self.reports.add("ended CTA", text, parts);
        }
    }
}
