//! The frequency at which the copy thread reads the doorbells.

use std::time::Duration;

/// The time for which the thread polls the doorbells before it sleeps between polls.
pub(super) struct PollPolicy {
    /// The time for which the thread spins after the last event, so that it is awake for back-to-back calls.
    spin: Duration,
    /// The time for which the thread spins while a launched kernel has not made its request yet. The kernel may be queued
    /// behind long work of the caller.
    spin_for_launched: Duration,
    /// The time for which the thread yields to other threads between polls after a launch was captured. Replays of graphs make
    /// requests without a launch. This time is longer than one step of most models.
    yield_for_captured: Duration,
    /// The time for which the thread sleeps between two polls after it has stopped yielding.
    pub sleep: Duration,
}

pub(super) const GPU_POLICY: PollPolicy = PollPolicy {
    spin: Duration::from_millis(2),
    spin_for_launched: Duration::from_millis(100),
    yield_for_captured: Duration::from_millis(50),
    sleep: Duration::from_micros(50),
};

/// The action of the thread between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    Spin,
    Yield,
    Sleep,
}

impl PollPolicy {
    pub fn pause(
        &self,
        silence: Duration,
        is_expected: impl Fn() -> bool,
        is_captured: impl Fn() -> bool,
    ) -> Pause {
        if silence < self.spin || (silence < self.spin_for_launched && is_expected()) {
            Pause::Spin
        } else if silence < self.yield_for_captured && is_captured() {
            Pause::Yield
        } else {
            Pause::Sleep
        }
    }
}

/// The policy for simulated GPUs, which are slow and need the CPU themselves.
pub(super) const SIMULATED_POLICY: PollPolicy = PollPolicy {
    spin: Duration::ZERO,
    spin_for_launched: Duration::ZERO,
    yield_for_captured: Duration::ZERO,
    sleep: Duration::from_millis(1),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_stays_awake_between_replays() {
        let after = |ms, is_captured| {
            let silence = Duration::from_millis(ms);
            GPU_POLICY.pause(silence, || false, || is_captured)
        };
        for is_captured in [false, true] {
            assert_eq!(after(1, is_captured), Pause::Spin);
            assert_eq!(after(50, is_captured), Pause::Sleep);
        }
        assert_eq!(
            (after(10, false), after(10, true)),
            (Pause::Sleep, Pause::Yield)
        );
    }
}
