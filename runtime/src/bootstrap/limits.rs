//! Limits of the steps that exchange bytes between ranks.

use std::time::Duration;

/// The most bytes that one rank may contribute to a step.
pub const MAX_CONTRIBUTION_BYTES: usize = 64 << 10;

/// The most bytes of a contribution, including one byte with the outcome of the step on that rank.
pub(super) const MAX_STEP_BYTES: usize = MAX_CONTRIBUTION_BYTES + 1;

/// The time for which a thread sleeps between two polls of its sockets. The steps of `prepare` take milliseconds, so the sleep
/// costs nothing.
pub(super) const POLL: Duration = Duration::from_micros(200);
