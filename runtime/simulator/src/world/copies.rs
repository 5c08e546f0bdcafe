//! What streams do besides kernels: copies between GPUs and the host, fills, words.

use super::clock::{Clock, Ways};
use super::machine::Machine;
use super::memory::Found;
use super::report::Fate;
use super::shadow::{Accessor, NO_SLOT, Stamp, Way, Who};
use super::{Moment, Outcome, TaskId, Work};

/// A copy that has not been made.
#[derive(Debug)]
pub(super) struct Pending {
    pub task: TaskId,
    pub device: u32,
    pub work: Work,
    pub after: Clock,
}

impl Machine {
    /// Makes a copy, as a whole.
    pub fn make(&mut self, pending: Pending) -> (TaskId, Outcome, Moment) {
        let Pending {
            task,
            device,
            work,
            mut after,
        } = pending;
        let strand = self.strand(device);
        let (component, step) = strand.at(1);
        let way = if matches!(work, Work::Write { .. }) {
            Way::AtomicSys
        } else {
            Way::Host
        };
        let who = Who {
            device,
            launch: u32::MAX,
            ..Who::default()
        };
        let stamp = self.shadow.stamp(Stamp {
            way,
            component,
            step,
            slot: NO_SLOT,
            solo_step: 0,
            who,
        });
        let made = self.make_work(work, &after, stamp);
        after.raise(component, step);
        self.free_strand(device, strand, 1);
        self.copied.join(&after);
        (task, made.unwrap_or_else(Outcome::Failed), Moment(after))
    }

    fn make_work(&mut self, work: Work, after: &Clock, stamp: u32) -> Result<Outcome, String> {
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
                    self.stretch(
                        from + row * from_pitch_bytes,
                        Fate::Read(&mut row_data),
                        after,
                        stamp,
                    )?;
                    self.stretch(
                        to + row * to_pitch_bytes,
                        Fate::Write(&row_data),
                        after,
                        stamp,
                    )?;
                }
            }
            Work::Upload { to, bytes } => self.stretch(to, Fate::Write(&bytes), after, stamp)?,
            Work::Download { from, bytes } => {
                let mut data = vec![0; bytes as usize];
                self.stretch(from, Fate::Read(&mut data), after, stamp)?;
                return Ok(Outcome::Read(data));
            }
            Work::Fill { to, value, bytes } => {
                self.stretch(to, Fate::Write(&vec![value; bytes as usize]), after, stamp)?;
            }
            Work::Write { to, value } => match self.memory.find(to, 4, None)? {
                // The program polls it.
                Found::Host { address } => Self::store_host(address, &value.to_ne_bytes()),
                Found::Global { id, offset } => {
                    self.stretch(to, Fate::Write(&value.to_ne_bytes()), after, stamp)?;
                    // Like an ordinary store with release: TMA needs a proxy fence behind the acquire.
                    let ways = Ways {
                        generic: after.clone(),
                        ..Ways::default()
                    };
                    self.publish_by_host((id, offset), ways.into());
                }
            },
            Work::Kernel { .. } => return Err("a kernel is no copy".into()),
        }
        Ok(Outcome::Done)
    }

    fn stretch(
        &mut self,
        address: u64,
        fate: Fate<'_>,
        after: &Clock,
        stamp: u32,
    ) -> Result<(), String> {
        let bytes = match &fate {
            Fate::Read(to) => to.len(),
            Fate::Write(from) => from.len(),
        };
        if bytes == 0 {
            return Ok(());
        }
        let (id, offset) = match self.memory.find(address, bytes as u64, None)? {
            Found::Global { id, offset } => (id, offset),
            Found::Host { address } => {
                // SAFETY: adopted memory is alive; the host's program orders such copies against its own accesses.
                unsafe {
                    match fate {
                        Fate::Read(to) => std::ptr::copy_nonoverlapping(
                            address as *const u8,
                            to.as_mut_ptr(),
                            bytes,
                        ),
                        Fate::Write(from) => {
                            std::ptr::copy_nonoverlapping(from.as_ptr(), address as *mut u8, bytes)
                        }
                    }
                }
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
        let mut found = None;
        let note = |fault, earlier, word| {
            found.get_or_insert((fault, earlier, word));
        };
        let cells = memory.cells_of(offset, bytes);
        match fate {
            // The host may look at whatever is there.
            Fate::Read(to) => {
                self.shadow.read(cells, &by, note);
                to.copy_from_slice(&memory.bytes[offset..offset + bytes]);
            }
            Fate::Write(from) => {
                self.shadow.write(cells, &by, note);
                memory.bytes[offset..offset + bytes].copy_from_slice(from);
            }
        }
        if let Some((fault, earlier, word)) = found
            && fault != super::shadow::Fault::Uninitialised
        {
            let what = memory.describe(offset + 4 * word);
            self.find_fault(fault, earlier, stamp, &what);
        }
        Ok(())
    }
}
