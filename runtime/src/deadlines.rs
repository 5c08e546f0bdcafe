//! Timeouts that several parts of the crate use.

use std::time::Duration;

/// How long a stream may take beyond the deadline of its kernels before
/// [`Communicator::synchronize`](crate::Communicator::synchronize) gives up.
pub(crate) const DRAIN_MARGIN: Duration = Duration::from_secs(10);

/// How long rank 0 may compile. If rank 0 dies meanwhile, the other ranks detect that at once.
pub(crate) const BUILD_TIMEOUT: Duration = Duration::from_secs(600);
