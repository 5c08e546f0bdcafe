//! The work of streams other than kernels: copies between GPUs and the host, fills, writes of words, and calls of
//! functions of the program.

use super::clock::{Clock, ViewClocks};
use super::interface::{Moment, Outcome, TaskId, Work};
use super::machine::Machine;
use super::memory::{Location, Transfer};
use super::shadow::AccessFault;
use super::stamp::{AccessKind, Accessor, NO_SLOT, Origin, Stamp};

/// Work of the host that has been started and not been done.
#[derive(Debug)]
pub(super) struct PendingCopy {
    pub task: TaskId,
    pub device: u32,
    pub work: Work,
    pub after: Clock,
}

impl Machine {
    /// Does the whole work of the host. Returns the outcome and the moment of the end.
    pub fn perform_host_work(&mut self, pending: PendingCopy) -> (TaskId, Outcome, Moment) {
        let PendingCopy {
            task,
            device,
            work,
            mut after,
        } = pending;
        let counter = self.take_counter(device);
        let (component, step) = counter.at(1);
        let kind = if matches!(work, Work::Write { .. }) {
            AccessKind::AtomicSys
        } else {
            AccessKind::Host
        };
        let origin = Origin {
            device,
            launch: u32::MAX,
            ..Origin::default()
        };
        let stamp = self.shadow.stamp(Stamp {
            kind,
            component,
            step,
            slot: NO_SLOT,
            solo_step: 0,
            origin,
        });
        let done = self.transfer_work(work, &after, stamp);
        after.raise(component, step);
        self.return_counter(device, counter, 1);
        self.copied.join(&after);
        (task, done.unwrap_or_else(Outcome::Failed), Moment(after))
    }

    /// Transfers the bytes of `work`. All accesses have the stamp `stamp` and know `after`.
    fn transfer_work(&mut self, work: Work, after: &Clock, stamp: u32) -> Result<Outcome, String> {
        match work {
            Work::Copy {
                to,
                from,
                to_pitch_bytes,
                from_pitch_bytes,
                row_bytes,
                rows,
            } => {
                let mut row_data = vec![0; row_bytes as usize];
                for row in 0..rows {
                    self.transfer_range(
                        from + row * from_pitch_bytes,
                        Transfer::Read(&mut row_data),
                        after,
                        stamp,
                    )?;
                    self.transfer_range(
                        to + row * to_pitch_bytes,
                        Transfer::Write(&row_data),
                        after,
                        stamp,
                    )?;
                }
            }
            Work::Upload { to, bytes } => {
                self.transfer_range(to, Transfer::Write(&bytes), after, stamp)?
            }
            Work::Download { from, bytes } => {
                let mut data = vec![0; bytes as usize];
                self.transfer_range(from, Transfer::Read(&mut data), after, stamp)?;
                return Ok(Outcome::Read(data));
            }
            Work::Fill { to, value, bytes } => {
                self.transfer_range(
                    to,
                    Transfer::Write(&vec![value; bytes as usize]),
                    after,
                    stamp,
                )?;
            }
            Work::Write { to, value } => match self.memory.resolve(to, 4, None)? {
                // Threads of the program may poll the word, so it is written with an atomic store.
                Location::Host { address } => Self::store_host(address, &value.to_ne_bytes()),
                Location::Global { id, offset } => {
                    self.transfer_range(to, Transfer::Write(&value.to_ne_bytes()), after, stamp)?;
                    // The write releases ordinary accesses only. TMA needs a proxy fence after the acquire.
                    let ways = ViewClocks {
                        generic: after.clone(),
                        ..ViewClocks::default()
                    };
                    self.publish_by_host((id, offset), ways.into());
                }
            },
            Work::Call(function) => (function.0)(),
            Work::Kernel { .. } => return Err("a kernel was started as a copy".into()),
        }
        Ok(Outcome::Done)
    }

    /// Reads or writes a range of memory, and checks the order of the access.
    fn transfer_range(
        &mut self,
        address: u64,
        transfer: Transfer<'_>,
        after: &Clock,
        stamp: u32,
    ) -> Result<(), String> {
        let bytes = match &transfer {
            Transfer::Read(to) => to.len(),
            Transfer::Write(from) => from.len(),
        };
        if bytes == 0 {
            return Ok(());
        }
        let (id, offset) = match self.memory.resolve(address, bytes as u64, None)? {
            Location::Global { id, offset } => (id, offset),
            Location::Host { address } => {
                transfer_host_memory(address, transfer);
                return Ok(());
            }
        };
        let memory = self.memory.physical(id);
        let by = Accessor {
            stamp,
            generic: &[after],
            proxy: None,
            slot: NO_SLOT,
            own: 0,
            fenced: 0,
        };
        let cells = memory.cells_of(offset, bytes);
        let found = self.shadow.access(cells, &by, transfer.writes());
        transfer.perform(&mut memory.bytes[offset..offset + bytes]);
        // The host may read memory that was never written, see below.
        if let Some((fault, earlier, word)) = found
            && fault != AccessFault::Uninitialised
        {
            let what = memory.describe(offset + 4 * word);
            self.report_access_fault(fault, earlier, stamp, &what);
        }
        Ok(())
    }
}

/// Reads or writes pinned host memory that [`Machine`] has resolved.
fn transfer_host_memory(address: u64, transfer: Transfer<'_>) {
    match transfer {
        Transfer::Read(to) => {
            let from = address as *const u8;
            // SAFETY: adopted memory is alive, and the program orders such copies with its own accesses.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        }
        Transfer::Write(from) => {
            let to = address as *mut u8;
            // SAFETY: adopted memory is alive, and the program orders such copies with its own accesses.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        }
    }
}
