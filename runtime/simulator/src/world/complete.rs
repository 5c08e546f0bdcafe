//! What becomes of TMA's copies: late, in any order, one step at a time.

use super::machine::{Machine, SHARED_START};
use super::memory::Found;
use super::report::Fate;
use super::shadow::Accessor;
use super::tensor::{Run, swizzled};
use super::tma::{Operation, To};

impl Machine {
    /// Lets one operation go on.
    pub fn complete_operation(&mut self, index: usize) {
        let mut operation = self.operations.swap_remove(index);
        self.now_ns += 20;
        // Checks report on behalf of the thread that issued it.
        let running = std::mem::replace(&mut self.current, operation.thread);
        match operation.to {
            To::Shared { .. } => self.complete_load(&operation),
            To::Global { read: None, group } => {
                let read = Some(self.read_shared(&operation, group));
                operation.to = To::Global { group, read };
                self.group_advanced(operation.thread, group, true);
                self.operations.push(operation);
            }
            To::Global {
                read: Some(_),
                group,
            } => {
                self.write_global(&operation, group);
                self.group_advanced(operation.thread, group, false);
            }
        }
        self.current = running;
    }

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

    fn complete_load(&mut self, operation: &Operation) {
        let To::Shared {
            cta,
            barrier,
            bytes,
        } = operation.to
        else {
            return;
        };
        let phase = self.ctas[cta].barriers[barrier].of_this_phase();
        let stamp = self.async_stamp(operation.thread, phase, operation.place);
        let mut data = vec![0; bytes as usize];
        for run in operation.runs.iter().filter(|run| run.bytes > 0) {
            let to = (run.box_offset + run.skipped) as usize;
            let fate = Fate::Read(&mut data[to..to + run.bytes as usize]);
            self.global_run(operation, run, stamp, fate);
        }
        self.shared_rows(operation, cta, stamp, Fate::Write(&data));
        self.barrier_bytes(cta, barrier, bytes);
    }

    fn read_shared(&mut self, operation: &Operation, group: u32) -> Vec<u8> {
        let total: u32 = operation.runs.iter().map(|run| run.row_bytes).sum();
        let (reads, _) = self.threads[operation.thread]
            .bulk
            .strands
            .unwrap_or_default();
        let stamp = self.async_stamp(operation.thread, reads.at(group), operation.place);
        let mut data = vec![0; total as usize];
        let cta = self.threads[operation.thread].cta;
        self.shared_rows(operation, cta, stamp, Fate::Read(&mut data));
        data
    }

    fn write_global(&mut self, operation: &Operation, group: u32) {
        let To::Global {
            read: Some(data), ..
        } = &operation.to
        else {
            return;
        };
        let (_, writes) = self.threads[operation.thread]
            .bulk
            .strands
            .unwrap_or_default();
        let stamp = self.async_stamp(operation.thread, writes.at(group), operation.place);
        for run in operation.runs.iter().filter(|run| run.bytes > 0) {
            let from = (run.box_offset + run.skipped) as usize;
            self.global_run(
                operation,
                run,
                stamp,
                Fate::Write(&data[from..from + run.bytes as usize]),
            );
        }
    }

    /// One run in global memory.
    fn global_run(&mut self, operation: &Operation, run: &Run, stamp: u32, fate: Fate<'_>) {
        let (id, offset) =
            match self
                .memory
                .find(run.address, u64::from(run.bytes), Some(operation.device))
            {
                Ok(Found::Global { id, offset }) => (id, offset),
                Ok(Found::Host { address }) => {
                    return self.fail_launch(
                        operation.launch,
                        format!("a bulk copy of host memory at {address:#x}"),
                    );
                }
                Err(why) => {
                    return self.fail_launch(
                        operation.launch,
                        format!("a bulk copy out of bounds: {why}"),
                    );
                }
            };
        let memory = self.memory.physical(id);
        let by = Accessor {
            stamp,
            generic: &[&operation.view.generic],
            proxy: Some(&[&operation.view.global]),
            slot: operation.slot,
            own: operation.own,
            fenced: operation.fenced.1,
        };
        let mut found = None;
        let note = |fault, earlier, word| {
            found.get_or_insert((fault, earlier, word));
        };
        let cells = memory.cells_of(offset, run.bytes as usize);
        match fate {
            Fate::Read(to) => {
                self.shadow.read(cells, &by, note);
                to.copy_from_slice(&memory.bytes[offset..offset + to.len()]);
            }
            Fate::Write(from) => {
                self.shadow.write(cells, &by, note);
                memory.bytes[offset..offset + from.len()].copy_from_slice(from);
            }
        }
        if let Some((fault, earlier, word)) = found {
            let what = memory.describe(offset + 4 * word);
            self.find_fault(fault, earlier, stamp, &what);
        }
    }

    /// All rows of the box in the shared memory of `cta`, chunk by chunk.
    fn shared_rows(&mut self, operation: &Operation, cta: usize, stamp: u32, mut fate: Fate<'_>) {
        let by = Accessor {
            stamp,
            generic: &[&operation.view.generic],
            proxy: Some(&[&operation.view.shared]),
            slot: operation.slot,
            own: operation.own,
            fenced: operation.fenced.0,
        };
        let mut found = None;
        for run in &operation.runs {
            let step = if operation.swizzle_bytes == 0 {
                run.row_bytes
            } else {
                16
            };
            for first in (0..run.row_bytes).step_by(step as usize) {
                let bytes = step.min(run.row_bytes - first) as usize;
                let address = swizzled(
                    operation.shared + run.box_offset + first,
                    operation.swizzle_bytes,
                );
                let offset = (address - SHARED_START) as usize;
                let from = (run.box_offset + first) as usize;
                let memory = &mut self.ctas[cta];
                let cells = &mut memory.smem.cells[offset / 4..(offset + bytes).div_ceil(4)];
                let note = |fault, earlier, _| {
                    found.get_or_insert((fault, earlier, address));
                };
                match &mut fate {
                    Fate::Read(to) => {
                        self.shadow.read(cells, &by, note);
                        to[from..from + bytes]
                            .copy_from_slice(&memory.smem.bytes[offset..offset + bytes]);
                    }
                    Fate::Write(data) => {
                        self.shadow.write(cells, &by, note);
                        memory.smem.bytes[offset..offset + bytes]
                            .copy_from_slice(&data[from..from + bytes]);
                    }
                }
            }
        }
        if let Some((fault, earlier, address)) = found {
            self.find_fault(
                fault,
                earlier,
                stamp,
                &format!("shared memory at {address:#x}"),
            );
        }
    }
}
