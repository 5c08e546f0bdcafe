//! The progress of copies by TMA. A load is performed in one step. A store first reads shared memory and later writes
//! global memory.

use super::machine::Machine;
use super::memory::{Location, Transfer};
use super::stamp::Accessor;
use super::state::launch::SHARED_START;
use super::state::tma::{TmaCopy, TmaTarget};
use super::tensor::{Run, swizzled};

impl Machine {
    /// Performs the next step of a copy.
    pub fn advance_tma_copy(&mut self, index: usize) {
        let mut copy = self.tma_copies.swap_remove(index);
        self.now_ns += 20;
        // Findings name the thread that issued the copy.
        let running = std::mem::replace(&mut self.current, copy.thread);
        match copy.to {
            TmaTarget::Shared { .. } => self.complete_load(&copy),
            TmaTarget::Global { read: None, group } => {
                let read = Some(self.read_shared(&copy, group));
                copy.to = TmaTarget::Global { group, read };
                self.group_advanced(copy.thread, group, true);
                self.tma_copies.push(copy);
            }
            TmaTarget::Global {
                read: Some(_),
                group,
            } => {
                self.write_global(&copy, group);
                self.group_advanced(copy.thread, group, false);
            }
        }
        self.current = running;
    }

    /// Counts a read or a write of a bulk group, and wakes the thread if it waits for that.
    fn group_advanced(&mut self, thread: usize, group: u32, read: bool) {
        let bulk = &mut self.threads[thread].bulk;
        let index = bulk.groups.iter().position(|(number, ..)| *number == group);
        let index = index.unwrap_or_else(|| {
            bulk.groups.push((group, 0, 0));
            bulk.groups.len() - 1
        });
        let (_, reads, writes) = &mut bulk.groups[index];
        let left = if read { reads } else { writes };
        *left = left.wrapping_sub(1);
        if group <= bulk.committed {
            bulk.groups
                .retain(|(_, reads, writes)| (*reads, *writes) != (0, 0));
        }
        if let Some((over, read_only)) = bulk.waits
            && bulk.is_over(over, read_only)
        {
            bulk.waits = None;
            self.wake(thread);
        }
    }

    /// Copies global memory to shared memory, and counts the bytes at the barrier.
    fn complete_load(&mut self, copy: &TmaCopy) {
        let TmaTarget::Shared {
            cta,
            barrier,
            bytes,
        } = copy.to
        else {
            return;
        };
        let phase = self.ctas[cta].barriers[barrier].of_this_phase();
        let stamp = self.async_stamp(copy.thread, phase, copy.pc);
        let mut data = vec![0; bytes as usize];
        for run in copy.runs.iter().filter(|run| run.bytes > 0) {
            let to = (run.box_offset + run.skipped) as usize;
            let transfer = Transfer::Read(&mut data[to..to + run.bytes as usize]);
            self.global_run(copy, run, stamp, transfer);
        }
        self.shared_rows(copy, cta, stamp, Transfer::Write(&data));
        self.barrier_bytes(cta, barrier, bytes);
    }

    /// Reads the source of a store.
    fn read_shared(&mut self, copy: &TmaCopy, group: u32) -> Vec<u8> {
        let total: u32 = copy.runs.iter().map(|run| run.row_bytes).sum();
        let (reads, _) = self.threads[copy.thread].bulk.counters.unwrap_or_default();
        let stamp = self.async_stamp(copy.thread, reads.at(group), copy.pc);
        let mut data = vec![0; total as usize];
        let cta = self.threads[copy.thread].cta;
        self.shared_rows(copy, cta, stamp, Transfer::Read(&mut data));
        data
    }

    /// Writes the target of a store.
    fn write_global(&mut self, copy: &TmaCopy, group: u32) {
        let TmaTarget::Global {
            read: Some(data), ..
        } = &copy.to
        else {
            return;
        };
        let (_, writes) = self.threads[copy.thread].bulk.counters.unwrap_or_default();
        let stamp = self.async_stamp(copy.thread, writes.at(group), copy.pc);
        for run in copy.runs.iter().filter(|run| run.bytes > 0) {
            let from = (run.box_offset + run.skipped) as usize;
            self.global_run(
                copy,
                run,
                stamp,
                Transfer::Write(&data[from..from + run.bytes as usize]),
            );
        }
    }

    /// Reads or writes one run in global memory, and checks the order of the access.
    fn global_run(&mut self, copy: &TmaCopy, run: &Run, stamp: u32, transfer: Transfer<'_>) {
        let (id, offset) =
            match self
                .memory
                .resolve(run.address, u64::from(run.bytes), Some(copy.device))
            {
                Ok(Location::Global { id, offset }) => (id, offset),
                Ok(Location::Host { address }) => {
                    return self.fail_launch(
                    copy.launch,
                    format!(
                        "a bulk copy from or to host memory at {address:#x}, which is not simulated"
                    ),
                );
                }
                Err(why) => {
                    return self
                        .fail_launch(copy.launch, format!("a bulk copy out of bounds: {why}"));
                }
            };
        let memory = self.memory.physical(id);
        let by = Accessor {
            stamp,
            generic: &[&copy.view.generic],
            proxy: Some(&[&copy.view.global]),
            slot: copy.slot,
            own: copy.own,
            fenced: copy.fenced.1,
        };
        let cells = memory.cells_of(offset, run.bytes as usize);
        let found = self.shadow.access(cells, &by, transfer.writes());
        transfer.perform(&mut memory.bytes[offset..offset + run.bytes as usize]);
        if let Some((fault, earlier, word)) = found {
            let what = memory.describe(offset + 4 * word);
            self.report_access_fault(fault, earlier, stamp, &what);
        }
    }

    /// Reads or writes all rows of a box in the shared memory of `cta`, one swizzled chunk after the other.
    fn shared_rows(&mut self, copy: &TmaCopy, cta: usize, stamp: u32, mut transfer: Transfer<'_>) {
        let by = Accessor {
            stamp,
            generic: &[&copy.view.generic],
            proxy: Some(&[&copy.view.shared]),
            slot: copy.slot,
            own: copy.own,
            fenced: copy.fenced.0,
        };
        let mut found = None;
        for run in &copy.runs {
            let step = if copy.swizzle_bytes == 0 {
                run.row_bytes
            } else {
                16
            };
            for first in (0..run.row_bytes).step_by(step as usize) {
                let bytes = step.min(run.row_bytes - first) as usize;
                let address = swizzled(copy.shared + run.box_offset + first, copy.swizzle_bytes);
                let offset = (address - SHARED_START) as usize;
                let from = (run.box_offset + first) as usize;
                let memory = &mut self.ctas[cta];
                let cells = &mut memory.smem.cells[offset / 4..(offset + bytes).div_ceil(4)];
                let fault = self.shadow.access(cells, &by, transfer.writes());
                found = found.or(fault.map(|(fault, earlier, _)| (fault, earlier, address)));
                transfer
                    .part(from..from + bytes)
                    .perform(&mut memory.smem.bytes[offset..offset + bytes]);
            }
        }
        if let Some((fault, earlier, address)) = found {
            self.report_access_fault(
                fault,
                earlier,
                stamp,
                &format!("shared memory at {address:#x}"),
            );
        }
    }
}
