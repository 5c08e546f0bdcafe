//! [`Subject`]: a transport under test, and the emulated transport as a subject.

use super::delayed_copy::{DelayedCopyEngine, SourceTable};
use super::posted_writes::PostedCopyEngine;
use crate::emulated::{
    Clock, CopyEngine, EmulatedTransport, Faults, HostCopyEngine, NicModel, VirtualClock, Wire,
    pipe,
};
use crate::transport::Transport;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A transport under test.
pub trait Subject {
    /// Creates unconnected endpoints. The peers of each are all other endpoints, in order.
    fn make(&mut self, endpoints: usize) -> Vec<Box<dyn Transport>>;

    /// Returns the current time of the endpoints.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Lets time pass when no endpoint progresses.
    fn idle(&self) {
        std::thread::yield_now();
    }

    /// The time within which a lost peer must be reported and all other waits must end.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// Emulated NICs under a virtual clock.
pub struct EmulatedSubject {
    /// The model of each endpoint's NICs.
    pub nic: NicModel,
    /// The faults of each endpoint. The last entry is for all further endpoints.
    pub faults: Vec<Faults>,
    /// The seed of the copies' delays, if copies take time.
    pub copy_delay_seed: Option<u64>,
    /// Whether the bytes of copies become visible by a flush only.
    pub has_posted_writes: bool,
    start: Instant,
    clock: Arc<VirtualClock>,
}

impl EmulatedSubject {
    /// Creates a subject with the given model and faults.
    #[must_use]
    pub fn new(nic: NicModel, faults: Vec<Faults>) -> Self {
        Self {
            nic,
            faults,
            copy_delay_seed: None,
            has_posted_writes: false,
            start: Instant::now(),
            clock: Arc::default(),
        }
    }

    /// Returns the time of the NICs.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }
}

/// Creates one wire for each pair of endpoints. Returns the wires of each endpoint to all other endpoints, in order.
#[must_use]
pub fn pipes(endpoints: usize) -> Vec<Vec<Box<dyn Wire>>> {
    let mut wires: Vec<Vec<Box<dyn Wire>>> = (0..endpoints).map(|_| Vec::new()).collect();
    for low in 0..endpoints {
        for high in low + 1..endpoints {
            let (a, b) = pipe();
            wires[low].push(Box::new(a));
            wires[high].push(Box::new(b));
        }
    }
    wires
}

impl Subject for EmulatedSubject {
    fn make(&mut self, endpoints: usize) -> Vec<Box<dyn Transport>> {
        let sources = SourceTable::default();
        let make = |(at, wires): (usize, Vec<Box<dyn Wire>>)| -> Box<dyn Transport> {
            let faults = self.faults.get(at).or(self.faults.last());
            let mut faults = faults.cloned().unwrap_or_default();
            faults.seed = faults.seed.wrapping_mul(31).wrapping_add(at as u64);
            let clock = Clock::Virtual(Arc::clone(&self.clock));
            let copy_engine: Box<dyn CopyEngine> = match self.copy_delay_seed {
                None if self.has_posted_writes => Box::new(PostedCopyEngine::default()),
                None => Box::new(HostCopyEngine),
                Some(seed) => {
                    let seed = seed.wrapping_mul(31).wrapping_add(at as u64);
                    Box::new(DelayedCopyEngine::new(sources.clone(), seed, u64::MAX))
                }
            };
            let made = EmulatedTransport::new(self.nic.clone(), faults, clock, copy_engine, wires);
            Box::new(made.expect("a valid model"))
        };
        pipes(endpoints).into_iter().enumerate().map(make).collect()
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.clock.now_ns())
    }

    fn idle(&self) {
        self.clock.advance(100_000);
    }
}
