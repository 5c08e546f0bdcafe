//! [`InFlightWrites`]: the writes of an endpoint from the command to the completion.

use std::collections::VecDeque;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteState {
    Queued,
    Posted,
    Completed,
}

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Put,
    Credit,
    Close,
}

#[derive(Clone, Copy, Debug)]
struct InFlightWrite {
    peer: u16,
    kind: WriteKind,
    bytes: u32,
    /// The last write of a command.
    ends_command: bool,
    state: WriteState,
    since: Instant,
}

/// All writes that have not completed, oldest first, and writes that completed before an older write.
pub struct InFlightWrites {
    /// The id of the first write in `writes`.
    base: u64,
    writes: VecDeque<InFlightWrite>,
    puts: usize,
}

impl InFlightWrites {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self {
            base: 0,
            writes: VecDeque::new(),
            puts: 0,
        }
    }

    /// Adds a credit or a close and returns its id.
    pub fn add_message(&mut self, peer: u16, kind: WriteKind, now: Instant) -> u64 {
        self.add_write((peer, kind, 0), false, now)
    }

    /// Adds a put of `bytes` bytes and returns its id. A command counts as sent when its last put and all earlier puts have completed.
    pub fn add_put(&mut self, peer: u16, bytes: u32, ends_command: bool, now: Instant) -> u64 {
        self.add_write((peer, WriteKind::Put, bytes), ends_command, now)
    }

    fn add_write(
        &mut self,
        (peer, kind, bytes): (u16, WriteKind, u32),
        ends_command: bool,
        now: Instant,
    ) -> u64 {
        self.puts += usize::from(kind == WriteKind::Put);
        self.writes.push_back(InFlightWrite {
            peer,
            kind,
            bytes,
            ends_command,
            state: WriteState::Queued,
            since: now,
        });
        self.base + self.writes.len() as u64 - 1
    }

    /// Records that the transport accepted the write.
    pub fn mark_posted(&mut self, id: u64) {
        self.writes[(id - self.base) as usize].state = WriteState::Posted;
    }

    /// Records a completion. Returns the peer, the kind and the bytes of the write, or `None` if the completion is a duplicate.
    ///
    /// # Errors
    ///
    /// Returns an error if the write was never posted.
    pub fn complete(&mut self, id: u64) -> Result<Option<(u16, WriteKind, u32)>, String> {
        let Some(at) = id.checked_sub(self.base) else {
            return Ok(None);
        };
        match self.writes.get_mut(at as usize) {
            Some(write) if write.state == WriteState::Posted => {
                write.state = WriteState::Completed;
                Ok(Some((write.peer, write.kind, write.bytes)))
            }
            Some(write) if write.state == WriteState::Completed => Ok(None),
            _ => Err(format!(
                "the NIC completed write {id}, which was not posted"
            )),
        }
    }

    /// Returns whether a put to the peer has not completed.
    pub fn has_pending_put(&self, peer: u16) -> bool {
        self.writes.iter().any(|write| {
            write.peer == peer
                && write.kind == WriteKind::Put
                && write.state != WriteState::Completed
        })
    }

    /// Marks all messages to the peer as completed, so that only its puts are waited for.
    pub fn complete_messages(&mut self, peer: u16) {
        let messages = self.writes.iter_mut();
        messages
            .filter(|write| write.peer == peer && write.kind != WriteKind::Put)
            .for_each(|write| write.state = WriteState::Completed);
    }

    /// Removes the completed writes before the first incomplete write. Returns the number of commands that this completes.
    pub fn retire(&mut self) -> u32 {
        let mut commands = 0;
        while let Some(write) = self.writes.front() {
            if write.state != WriteState::Completed {
                break;
            }
            commands += u32::from(write.ends_command);
            self.puts -= usize::from(write.kind == WriteKind::Put);
            self.writes.pop_front();
            self.base += 1;
        }
        commands
    }

    /// Returns the oldest write that has not completed: its peer, whether it was posted, and the time at which it was added.
    pub fn oldest(&self) -> Option<(u16, bool, Instant)> {
        let oldest = self.writes.front()?;
        Some((
            oldest.peer,
            oldest.state == WriteState::Posted,
            oldest.since,
        ))
    }

    /// Returns the number of writes in any state.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Returns the number of puts that may not have completed.
    pub fn puts(&self) -> usize {
        self.puts
    }
}
