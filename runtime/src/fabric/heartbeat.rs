//! [`Heartbeat`]: the time of the last arrival from other nodes. Simulated GPUs need this: their threads may all wait for
//! another machine without being deadlocked.

use super::arrivals::PinnedArrivals;
use mkernel_fabric::{Arrivals, FabricError, PeerId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time at which a put last arrived or a kernel was last launched on this rank.
pub(crate) struct Heartbeat {
    start: Instant,
    last_ns: AtomicU64,
}

impl Heartbeat {
    /// Creates a heartbeat whose last event is now.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            last_ns: AtomicU64::new(0),
        })
    }

    pub fn record(&self) {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns whether the last event is no older than `limit`.
    pub fn is_within(&self, limit: Duration) -> bool {
        let last = Duration::from_nanos(self.last_ns.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(last) < limit
    }
}

/// Wraps [`PinnedArrivals`] so that each arrival is recorded as a heartbeat.
pub(crate) struct HeartbeatArrivals {
    pub arrivals: PinnedArrivals,
    pub heartbeat: Arc<Heartbeat>,
}

impl Arrivals for HeartbeatArrivals {
    fn raise(&mut self, peer: PeerId, channel: u16, count: u32) {
        self.heartbeat.record();
        self.arrivals.raise(peer, channel, count);
    }

    fn abort(&mut self, error: &FabricError) -> Option<u32> {
        self.arrivals.abort(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_grow_old() {
        let heartbeat = Heartbeat::new();
        assert!(heartbeat.is_within(Duration::from_secs(3600)));
        std::thread::sleep(Duration::from_millis(2));
        assert!(!heartbeat.is_within(Duration::from_millis(1)));
        heartbeat.record();
        assert!(heartbeat.is_within(Duration::from_secs(3600)));
        assert!(!heartbeat.is_within(Duration::ZERO));
    }
}
