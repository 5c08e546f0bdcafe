//! When the waits and the steps of a call's roles began and ended: [`Trace`].

mod clocks;
mod decode;
mod events;
mod pairing;
mod sm_clock;
mod span;

pub use clocks::ClockOffset;
pub(crate) use decode::decode;
pub use span::{Span, Trace};
