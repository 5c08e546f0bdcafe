//! [`EndpointConfig`]: the options of an endpoint that its owner chooses.

use std::time::Duration;

/// Options of an endpoint. `first_count` must be equal on all endpoints of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// The number of channels from each peer, at most [`MAX_CHANNELS`](mkernel_spec::fabric::MAX_CHANNELS).
    pub channels: u16,
    /// The longest time from the command of a put to its completion. A peer that takes longer is reported as timed out.
    pub deadline: Duration,
    /// The most bytes of puts to one peer that are in flight at once, so that several senders do not overrun the NIC of a
    /// receiver. A longer put is sent alone. `u64::MAX` sets no limit.
    pub byte_window: u64,
    /// The initial value of each channel's counter, which is 0 except in tests of counters that wrap around.
    pub first_count: u32,
}
