//! [`Signs`]: when other nodes were last heard of, which simulated GPUs must know: what they wait for may come from
//! another machine, so that they stand still is no deadlock yet.

use super::arrivals::PinnedArrivals;
use mkernel_fabric::{Arrivals, FabricError, PeerId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The last time that something arrived, or was begun here.
pub(crate) struct Signs {
    start: Instant,
    last_ns: AtomicU64,
}

impl Signs {
    /// The first is now.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            last_ns: AtomicU64::new(0),
        })
    }

    pub fn note(&self) {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.fetch_max(now, Ordering::Relaxed);
    }

    /// Whether the last one is no older than this.
    pub fn are_within(&self, limit: Duration) -> bool {
        let last = Duration::from_nanos(self.last_ns.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(last) < limit
    }
}

/// [`PinnedArrivals`], each a sign.
pub(crate) struct Heard {
    pub arrivals: PinnedArrivals,
    pub signs: Arc<Signs>,
}

impl Arrivals for Heard {
    fn raise(&mut self, peer: PeerId, channel: u16, count: u32) {
        self.signs.note();
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
        let signs = Signs::new();
        assert!(signs.are_within(Duration::from_secs(3600)));
        std::thread::sleep(Duration::from_millis(2));
        assert!(!signs.are_within(Duration::from_millis(1)));
        signs.note();
        assert!(signs.are_within(Duration::from_secs(3600)));
        assert!(!signs.are_within(Duration::ZERO));
    }
}
