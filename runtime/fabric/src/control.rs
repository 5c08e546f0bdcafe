//! The commands of a proxy's owner to the proxy's thread: drain, stop, wake.
//!
//! guarantees] [`drive`] guarantees that a drain ends only after every command that was published before the drain.
//! `tests/loom.rs` checks this file under every interleaving.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

const RUN: u32 = 0;
const DRAIN: u32 = 1;
const STOP: u32 = 2;

/// Words that the owner of a proxy writes and the proxy's thread reads.
pub struct Control {
    mode: AtomicU32,
    drain_limit_ns: AtomicU64,
    woken: AtomicU32,
    captured: AtomicU32,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whether the step did something.
    pub has_progressed: bool,
    /// Whether no write is in flight.
    pub is_idle: bool,
}

/// The reason why [`drive`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The writes of all commands that were published before the drain have completed.
    Drained,
    /// The owner requested an immediate stop.
    Stopped,
}

impl Control {
    /// Creates the controls of a thread that runs until further notice.
    pub fn new() -> Self {
        Self {
            mode: AtomicU32::new(RUN),
            drain_limit_ns: AtomicU64::new(u64::MAX),
            woken: AtomicU32::new(0),
            captured: AtomicU32::new(0),
        }
    }

    /// Requests an exit once the writes of all commands that were published before this call have completed.
    /// `limit_ns` is the deadline by the thread's clock.
    pub fn drain(&self, limit_ns: u64) {
        self.drain_limit_ns.store(limit_ns, Ordering::Relaxed);
        self.mode.store(DRAIN, Ordering::Release);
    }

    /// Requests an exit at the next step.
    pub fn stop(&self) {
        self.mode.store(STOP, Ordering::Release);
    }

    /// Requests that the thread look for work at once.
    pub fn wake(&self) {
        self.woken.store(1, Ordering::Relaxed);
    }

    /// Returns whether [`wake`](Self::wake) was called since the last call of this function.
    pub fn was_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) != 0 && self.woken.swap(0, Ordering::Relaxed) != 0
    }

    /// Records that kernels may run from now on without a call of [`wake`](Self::wake).
    pub fn capture(&self) {
        self.captured.store(1, Ordering::Relaxed);
    }

    /// Returns whether [`capture`](Self::capture) was called.
    pub fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed) != 0
    }

    /// Returns the deadline of a drain by the thread's clock.
    pub fn drain_limit_ns(&self) -> u64 {
        self.drain_limit_ns.load(Ordering::Relaxed)
    }
}

/// Calls `step` until the owner requests an exit, and `idle` after each step.
///
/// The mode is loaded *before* a step. Commands that were published before the drain are then visible to that step at the
/// latest. If the step finds no commands, the ring is empty.
pub fn drive<E>(
    control: &Control,
    mut step: impl FnMut() -> Result<Step, E>,
    mut idle: impl FnMut(Step),
) -> Result<Exit, E> {
    loop {
        let mode = control.mode.load(Ordering::Acquire);
        if mode == STOP {
            return Ok(Exit::Stopped);
        }
        let did = step()?;
        if mode == DRAIN && did.is_idle && !did.has_progressed {
            return Ok(Exit::Drained);
        }
        idle(did);
    }
}
