//! What a candidate of a collective should take.

use super::config::Protocol;
use super::op_plan::CollectivePlan;
use crate::cost::{FLAG_US, PUSH_SHARE, put_us};
use crate::device::Device;
use crate::roofline::{Bound, Traffic};
use crate::topology::Topology;

/// Launch of a kernel without shared memory until its first load, µs.
const START_US: f64 = 3.0;
/// A packet from one rank's registers to another's, µs.
const PACKET_US: f64 = 2.0;
/// A pass of a warp over a part of a chunk in this GPU's memory, as much as its lanes have in flight, µs.
const PASS_US: f64 = 1.5;
/// Sums of squares from the warps of a row to each other through L2, µs. It is an estimate.
const SQUARES_US: f64 = 1.0;

/// Expected time, µs.
pub(super) fn estimate_us(
    op_plan: &CollectivePlan,
    topology: Topology,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let bound = Bound::new(traffic, device);
    let steps = match (topology.world(), op_plan.protocol) {
        (1, _) => 0.0,
        _ if op_plan.reduces_all() => 1.0,
        _ => f64::from(
            u32::from(op_plan.config.op.reduces()) + u32::from(op_plan.config.op.gathers()),
        ),
    };
    let latency_us = steps
        * match op_plan.protocol {
            Protocol::Ll => PACKET_US,
            Protocol::Simple => FLAG_US + PASS_US,
        };
    let norm_us = match (op_plan.norm, op_plan.protocol) {
        (None, _) => 0.0,
        (Some(norm), Protocol::Ll) if norm.warps > 1 => SQUARES_US,
        (Some(_), Protocol::Ll) => 0.0,
        (Some(_), Protocol::Simple) => FLAG_US + PASS_US,
    };
    let link_us = bound.link_us / PUSH_SHARE;
    // While links are busy, other warps are at other chunks.
    let more_passes = op_plan.chunk_passes().saturating_sub(1);
    let passes_us = steps * PASS_US * more_passes as f64;
    let transfer_us = link_us.max(bound.memory_us).max(put_us(&bound) + passes_us);
    START_US + latency_us + norm_us + transfer_us
}
