//! Timeouts that several parts of the crate use.

use std::time::Duration;

/// The time that a stream may take beyond the deadline of its kernels before
/// [`Communicator::synchronize`](crate::Communicator::synchronize) gives up.
pub(crate) const DRAIN_MARGIN: Duration = Duration::from_secs(10);

/// The time that rank 0 may take to compile. If rank 0 dies while it compiles, the other ranks detect the loss at once.
pub(crate) const BUILD_TIMEOUT: Duration = Duration::from_secs(600);
