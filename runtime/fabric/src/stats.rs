//! [`EndpointStats`]: the statistics of an endpoint so far, and the counters behind the statistics.
//!
//! The thread that steps an endpoint counts, and any thread may read. A counter has one writer, so the writer raises it by a
//! load and a store, without an atomic addition. Counters are read one by one, so a snapshot may be a few events apart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only one thread may call this.
    pub fn add(&self, count: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(count);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Returns the sum.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one NIC. Its transport raises them.
#[derive(Debug, Default)]
pub struct RailCounters {
    /// The name of the NIC.
    pub name: String,
    /// The posted writes, including credits and close messages.
    pub writes: Counter,
    /// The bytes of these writes.
    pub bytes: Counter,
    /// The flushes that arrivals waited for.
    pub flushes: Counter,
}

impl RailCounters {
    /// Creates the counters of NICs with the given names.
    #[must_use]
    pub fn of(names: impl Iterator<Item = String>) -> Arc<[Self]> {
        let named = |name| Self {
            name,
            ..Self::default()
        };
        names.map(named).collect()
    }

    /// Counts a write.
    pub fn count(&self, bytes: u32) {
        self.writes.add(1);
        self.bytes.add(bytes.into());
    }
}

/// The counters of an endpoint. [`EndpointStats`] documents each counter.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub commands: Counter,
    pub puts: Counter,
    pub put_bytes: Counter,
    pub arrivals: Counter,
    pub credit_stalls: Counter,
    pub sleeps: Counter,
    pub dropped_writes: Counter,
    /// The known facts about the sender of the first dropped write.
    pub first_dropped: OnceLock<String>,
    pub rails: Arc<[RailCounters]>,
}

impl Counters {
    pub(crate) fn new(rails: Arc<[RailCounters]>) -> Self {
        Self {
            rails,
            ..Self::default()
        }
    }

    fn read(&self) -> EndpointStats {
        let rail = |rail: &RailCounters| RailStats {
            name: rail.name.clone(),
            writes: rail.writes.get(),
            bytes: rail.bytes.get(),
            flushes: rail.flushes.get(),
        };
        EndpointStats {
            commands: self.commands.get(),
            puts: self.puts.get(),
            put_bytes: self.put_bytes.get(),
            arrivals: self.arrivals.get(),
            credit_stalls: self.credit_stalls.get(),
            sleeps: self.sleeps.get(),
            dropped_writes: self.dropped_writes.get(),
            first_dropped: self.first_dropped.get().cloned(),
            rails: self.rails.iter().map(rail).collect(),
        }
    }
}

/// Reads the statistics of an endpoint so far, from any thread, also after its proxy has ended.
#[derive(Clone, Debug)]
pub struct StatsReader(pub(crate) Arc<Counters>);

impl StatsReader {
    /// Reads all counters.
    #[must_use]
    pub fn read(&self) -> EndpointStats {
        self.0.read()
    }
}

/// The statistics of an endpoint so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// The commands that were taken from the ring. A command is a put to one or more peers.
    pub commands: u64,
    /// The puts that were posted. A put to one peer counts once.
    pub puts: u64,
    /// The bytes of the posted puts.
    pub put_bytes: u64,
    /// The puts of peers that have arrived in order, each counted once.
    pub arrivals: u64,
    /// The number of times that puts to a peer began to wait for credits, because the peer had not delivered enough of the
    /// earlier puts.
    pub credit_stalls: u64,
    /// The number of times that the proxy's thread slept because it had no work.
    pub sleeps: u64,
    /// The dropped writes of senders that are not peers.
    pub dropped_writes: u64,
    /// The known facts about the sender of the first dropped write.
    pub first_dropped: Option<String>,
    /// The traffic of each NIC.
    pub rails: Vec<RailStats>,
}

/// The traffic that an endpoint has posted on one NIC so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailStats {
    /// The name of the NIC.
    pub name: String,
    /// The writes: puts, credits and close messages.
    pub writes: u64,
    /// The bytes of the posted writes.
    pub bytes: u64,
    /// The flushes that arrivals waited for. A flush covers all arrivals before it.
    pub flushes: u64,
}
