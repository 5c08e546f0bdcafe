//! Writes from the command to the completion.

use std::collections::VecDeque;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteState {
    Queued,
    Posted,
    Completed,
}

/// What a write brings.
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
    state: WriteState,
    since: Instant,
}

/// All writes that have not left, oldest first, and those that left before an older one did.
pub struct InFlightWrites {
    /// The id of the first.
    base: u64,
    writes: VecDeque<InFlightWrite>,
    puts: usize,
}

impl InFlightWrites {
    /// None.
    pub fn new() -> Self {
        Self {
            base: 0,
            writes: VecDeque::new(),
            puts: 0,
        }
    }

    /// The id of a new write.
    pub fn add(&mut self, peer: u16, kind: WriteKind, now: Instant) -> u64 {
        self.puts += usize::from(kind == WriteKind::Put);
        self.writes.push_back(InFlightWrite {
            peer,
            kind,
            state: WriteState::Queued,
            since: now,
        });
        self.base + self.writes.len() as u64 - 1
    }

    /// A transport accepted it.
    pub fn mark_posted(&mut self, id: u64) {
        self.writes[(id - self.base) as usize].state = WriteState::Posted;
    }

    /// A completion came: whose write it was, and what it brought; nothing if it has come before.
    ///
    /// # Errors
    ///
    /// The write was never posted.
    pub fn complete(&mut self, id: u64) -> Result<Option<(u16, WriteKind)>, String> {
        let Some(at) = id.checked_sub(self.base) else {
            return Ok(None);
        };
        match self.writes.get_mut(at as usize) {
            Some(write) if write.state == WriteState::Posted => {
                write.state = WriteState::Completed;
                Ok(Some((write.peer, write.kind)))
            }
            Some(write) if write.state == WriteState::Completed => Ok(None),
            _ => Err(format!("a completion of write {id}, which was not posted")),
        }
    }

    /// Whether a put to the peer has not left.
    pub fn has_pending_put(&self, peer: u16) -> bool {
        self.writes.iter().any(|write| {
            write.peer == peer
                && write.kind == WriteKind::Put
                && write.state != WriteState::Completed
        })
    }

    /// Of the peer's writes, only puts are waited for.
    pub fn complete_messages(&mut self, peer: u16) {
        let messages = self.writes.iter_mut();
        messages
            .filter(|write| write.peer == peer && write.kind != WriteKind::Put)
            .for_each(|write| write.state = WriteState::Completed);
    }

    /// Forgets what has left, up to the first write that has not. How many puts that were.
    pub fn retire(&mut self) -> u32 {
        let mut puts = 0;
        while let Some(write) = self.writes.front() {
            if write.state != WriteState::Completed {
                break;
            }
            puts += u32::from(write.kind == WriteKind::Put);
            self.writes.pop_front();
            self.base += 1;
        }
        self.puts -= puts as usize;
        puts
    }

    /// The oldest write that has not left: its peer, whether it was posted, and since when it waits.
    pub fn oldest(&self) -> Option<(u16, bool, Instant)> {
        let oldest = self.writes.front()?;
        Some((
            oldest.peer,
            oldest.state == WriteState::Posted,
            oldest.since,
        ))
    }

    /// Writes, of whatever state.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Puts that are not known to have left.
    pub fn puts(&self) -> usize {
        self.puts
    }
}
