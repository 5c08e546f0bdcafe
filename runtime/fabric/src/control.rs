//! How a proxy's thread is told to end, and that it ends only after what was posted before.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

const RUN: u32 = 0;
const DRAIN: u32 = 1;
const STOP: u32 = 2;

/// Words that a proxy's owner writes and its thread reads.
pub struct Control {
    mode: AtomicU32,
    drain_limit_ns: AtomicU64,
    woken: AtomicU32,
    captured: AtomicU32,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whether it did something.
    pub has_progressed: bool,
    /// Whether nothing is on its way.
    pub is_idle: bool,
}

/// Why [`drive`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything that was posted before the drain has left.
    Drained,
    /// It was told to stop at once.
    Stopped,
}

impl Control {
    /// Nothing is asked.
    pub fn new() -> Self {
        Self {
            mode: AtomicU32::new(RUN),
            drain_limit_ns: AtomicU64::new(u64::MAX),
            woken: AtomicU32::new(0),
            captured: AtomicU32::new(0),
        }
    }

    /// To end once all commands that were published before this call have left, by `limit_ns` of the thread's clock.
    pub fn drain(&self, limit_ns: u64) {
        self.drain_limit_ns.store(limit_ns, Ordering::Relaxed);
        self.mode.store(DRAIN, Ordering::Release);
    }

    /// To end now.
    pub fn stop(&self) {
        self.mode.store(STOP, Ordering::Release);
    }

    /// To look for work at once.
    pub fn wake(&self) {
        self.woken.store(1, Ordering::Relaxed);
    }

    /// Whether it was woken since this was last asked.
    pub fn was_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) != 0 && self.woken.swap(0, Ordering::Relaxed) != 0
    }

    /// From now on kernels may run that nobody announces.
    pub fn capture(&self) {
        self.captured.store(1, Ordering::Relaxed);
    }

    /// Whether [`capture`](Self::capture) was called.
    pub fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed) != 0
    }

    /// When a drain must be over.
    pub fn drain_limit_ns(&self) -> u64 {
        self.drain_limit_ns.load(Ordering::Relaxed)
    }
}

/// Steps until the end. The mode is read *before* a step: commands that were published before the drain are then seen by
/// that step at the latest, and if it finds none, there are none.
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
