//! Writes from the command to the completion.

use std::collections::VecDeque;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    Posted,
    Done,
}

/// What a write brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cargo {
    Put,
    Credit,
    Goodbye,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    peer: u16,
    cargo: Cargo,
    state: State,
    since: Instant,
}

/// All writes that have not left, oldest first, and those that left before an older one did.
pub struct Flights {
    /// The id of the first.
    base: u64,
    flights: VecDeque<Flight>,
    puts: usize,
}

impl Flights {
    /// None.
    pub fn new() -> Self {
        Self {
            base: 0,
            flights: VecDeque::new(),
            puts: 0,
        }
    }

    /// The id of a new write.
    pub fn add(&mut self, peer: u16, cargo: Cargo, now: Instant) -> u64 {
        self.puts += usize::from(cargo == Cargo::Put);
        self.flights.push_back(Flight {
            peer,
            cargo,
            state: State::Queued,
            since: now,
        });
        self.base + self.flights.len() as u64 - 1
    }

    /// A transport accepted it.
    pub fn posted(&mut self, id: u64) {
        self.flights[(id - self.base) as usize].state = State::Posted;
    }

    /// A completion came: whose write it was, and what it brought; nothing if it has come before.
    ///
    /// # Errors
    ///
    /// The write was never posted.
    pub fn done(&mut self, id: u64) -> Result<Option<(u16, Cargo)>, String> {
        let Some(at) = id.checked_sub(self.base) else {
            return Ok(None);
        };
        match self.flights.get_mut(at as usize) {
            Some(flight) if flight.state == State::Posted => {
                flight.state = State::Done;
                Ok(Some((flight.peer, flight.cargo)))
            }
            Some(flight) if flight.state == State::Done => Ok(None),
            _ => Err(format!("a completion of write {id}, which was not posted")),
        }
    }

    /// Whether a put to the peer has not left.
    pub fn has_put_to(&self, peer: u16) -> bool {
        self.flights.iter().any(|flight| {
            flight.peer == peer && flight.cargo == Cargo::Put && flight.state != State::Done
        })
    }

    /// Of the peer's writes, only puts are waited for.
    pub fn forgo_messages(&mut self, peer: u16) {
        let messages = self.flights.iter_mut();
        messages
            .filter(|flight| flight.peer == peer && flight.cargo != Cargo::Put)
            .for_each(|flight| flight.state = State::Done);
    }

    /// Forgets what has left, up to the first write that has not. How many puts that were.
    pub fn leave(&mut self) -> u32 {
        let mut puts = 0;
        while let Some(flight) = self.flights.front() {
            if flight.state != State::Done {
                break;
            }
            puts += u32::from(flight.cargo == Cargo::Put);
            self.flights.pop_front();
            self.base += 1;
        }
        self.puts -= puts as usize;
        puts
    }

    /// The oldest write that has not left: its peer, whether it was posted, and since when it waits.
    pub fn oldest(&self) -> Option<(u16, bool, Instant)> {
        let oldest = self.flights.front()?;
        Some((oldest.peer, oldest.state == State::Posted, oldest.since))
    }

    /// Writes, of whatever state.
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// Puts that are not known to have left.
    pub fn puts(&self) -> usize {
        self.puts
    }
}
