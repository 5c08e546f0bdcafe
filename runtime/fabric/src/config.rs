//! [`EndpointConfig`]: the options of an endpoint that its owner chooses.

use std::time::Duration;

/// Options of an endpoint. All endpoints of a job need the same `first_count`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// The number of channels from each peer, at most [`MAX_CHANNELS`](mkernel_spec::fabric::MAX_CHANNELS).
    pub channels: u16,
    /// The longest time from the command of a put to its completion. A peer that exceeds it is reported as timed out.
    pub deadline: Duration,
    /// The initial value of each channel's counter. It is 0, except in tests of counters that wrap around.
    pub first_count: u32,
}
