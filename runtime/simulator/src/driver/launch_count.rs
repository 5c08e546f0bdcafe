//! [`LaunchCount`]: how many launches of a kernel have begun, and whether one is running.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of launches of a loaded kernel that have begun and ended. The counts may outlive the module of the
/// kernel.
#[derive(Debug, Default)]
pub struct LaunchCount {
    begun: AtomicU64,
    before_abort: AtomicU64,
    ended: AtomicU64,
}

impl LaunchCount {
    /// Returns how many launches have begun. One that has been started while the kernel before it was running begins when
    /// that has ended.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns how many launches have begun before a kernel of the host aborted.
    #[must_use]
    pub fn before_abort(&self) -> u64 {
        self.before_abort.load(Ordering::Relaxed)
    }

    /// Returns whether a launch has begun and has not ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.ended.load(Ordering::Relaxed) != self.begun()
    }

    pub(super) fn begin(&self, has_aborted: bool) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.before_abort
            .fetch_add((!has_aborted).into(), Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}
