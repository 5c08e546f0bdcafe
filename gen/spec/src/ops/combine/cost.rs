//! The expected time of a candidate of `combine`.

use crate::device::Device;
use crate::roofline::Bound;

/// Expected time of `combine`, µs.
pub(crate) fn combine_us(bound: &Bound, device: &Device) -> f64 {
    let costs = device.costs();
    let link = match bound.link_us {
        0.0 => 0.0,
        link_us => 3.0 * costs.flag_us + link_us / costs.push_share,
    };
    costs.launch_us + link.max(bound.memory_us)
}
