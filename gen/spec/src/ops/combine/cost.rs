//! What a candidate of `combine` should take.

use crate::cost::{FLAG_US, LAUNCH_US, PUSH_SHARE};
use crate::roofline::Bound;

/// Expected time of `combine`, µs.
pub(crate) fn combine_us(bound: &Bound) -> f64 {
    let link = match bound.link_us {
        0.0 => 0.0,
        link_us => 3.0 * FLAG_US + link_us / PUSH_SHARE,
    };
    LAUNCH_US + link.max(bound.memory_us)
}
