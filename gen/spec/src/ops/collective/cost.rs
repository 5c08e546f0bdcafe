//! The expected time of a candidate of a collective.

use super::config::Protocol;
use super::op_plan::CollectivePlan;
use crate::device::Device;
use crate::roofline::{Bound, Traffic};
use crate::topology::Topology;

/// Expected time, µs.
pub(super) fn estimate_us(
    op_plan: &CollectivePlan,
    topology: Topology,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let costs = device.costs();
    let bound = Bound::new(traffic, device);
    let op = op_plan.config.op;
    let (reduces, gathers) = match topology.world() {
        1 => (false, false),
        _ => (op.reduces(), op.gathers() && !op_plan.reduces_all()),
    };
    let (reduces_us, gathers_us) = match op_plan.protocol {
        Protocol::Ll => (costs.collective.packet_us, costs.collective.packet_us),
        Protocol::Simple => (
            costs.flag_us + costs.collective.reduce_us,
            costs.flag_us + costs.collective.copy_us,
        ),
    };
    let of = |is_step: bool, us: f64| if is_step { us } else { 0.0 };
    let scatters = op_plan.scatters(topology);
    let latency_us = of(reduces, reduces_us) + of(scatters, gathers_us) + of(gathers, gathers_us);
    let norm_us = match (op_plan.norm, op_plan.protocol) {
        (None, _) => 0.0,
        (Some(norm), Protocol::Ll) if norm.warps > 1 => costs.collective.squares_us,
        (Some(_), Protocol::Ll) => 0.0,
        (Some(_), Protocol::Simple) => costs.flag_us + costs.collective.reduce_us,
    };
    // Chunks of sums are sent while other chunks are added up.
    let link_us = match op_plan.protocol {
        Protocol::Ll if reduces && gathers => {
            bound.link_us
                * (1.0 / costs.collective.link_share + 1.0 / costs.collective.sums_link_share)
                / 2.0
        }
        _ => bound.link_us / costs.collective.link_share,
    };
    costs.collective.start_us
        + latency_us
        + norm_us
        + link_us.max(bound.memory_us).max(costs.put_us(&bound))
}
