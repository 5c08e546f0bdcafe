//! [`Clock`]: the time of an emulated NIC, real or virtual.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The clock of an emulated NIC.
#[derive(Clone, Debug)]
pub enum Clock {
    /// Real time: the monotonic clock of the host, which all its processes share.
    Real,
    /// Virtual time, which passes only when a test advances it.
    Virtual(Arc<VirtualClock>),
}

impl Clock {
    /// Returns the nanoseconds since a point in time that all NICs that exchange data share.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Real => {
                let now = clock_gettime(ClockId::Monotonic);
                now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
            }
            Self::Virtual(clock) => clock.now_ns(),
        }
    }

    /// Records that a NIC has something to do at the given time.
    pub(super) fn schedule(&self, due_ns: u64) {
        if let Self::Virtual(clock) = self {
            clock.next_ns.fetch_min(due_ns, Ordering::Relaxed);
        }
    }
}

/// A clock for endpoints that one thread steps in turns. When no endpoint progresses, the thread calls
/// [`advance`](Self::advance).
#[derive(Debug)]
pub struct VirtualClock {
    now_ns: AtomicU64,
    next_ns: AtomicU64,
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self {
            now_ns: AtomicU64::new(0),
            next_ns: AtomicU64::new(u64::MAX),
        }
    }
}

impl VirtualClock {
    /// Returns the nanoseconds since the clock's start.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    /// Advances to the next time at which a NIC that was polled since the last call has something to do. If there is no such
    /// time, the clock advances by `idle_ns`.
    pub fn advance(&self, idle_ns: u64) {
        let next = self.next_ns.swap(u64::MAX, Ordering::Relaxed);
        let now = self.now_ns();
        let to = if next == u64::MAX {
            now + idle_ns
        } else {
            next.max(now)
        };
        self.now_ns.store(to, Ordering::Relaxed);
    }
}
