//! What a candidate of a collective should take.

use super::config::Protocol;
use super::op_plan::CollectivePlan;
use crate::cost::{FLAG_US, put_us};
use crate::device::Device;
use crate::roofline::{Bound, Traffic};
use crate::topology::Topology;

/// Launch of a kernel without shared memory until its first load, µs.
const START_US: f64 = 3.0;
/// A packet from one rank's registers to another's, µs. Measured on 2×H100: an `all_reduce` of 1 to 16 KiB takes 3.9 µs in one
/// shot, and 4.7 in two.
const PACKET_US: f64 = 0.9;
/// A pass over chunks in this GPU's memory, µs: one that adds them up, and one that copies them. Measured on 2×H100, in a graph:
/// chunks of 512 KiB take 12.0 µs for an `all_reduce`, 7.1 for a `reduce_scatter`, and 5.6 for an `all_gather`.
const REDUCE_US: f64 = 4.5;
const COPY_US: f64 = 1.0;
/// The part of the link's rate that packets and chunks reach, and that packets with sums reach, which follow when all parts
/// have been added up. Measured on 2×H100: from 8 to 16 MiB, an `all_reduce` of packets takes 25.1 µs more in one shot, and 29.1
/// in two.
const SENT_SHARE: f64 = 0.97;
const SUMS_SHARE: f64 = 0.74;
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
    let op = op_plan.config.op;
    let (reduces, gathers) = match topology.world() {
        1 => (false, false),
        _ => (op.reduces(), op.gathers() && !op_plan.reduces_all()),
    };
    let (reduces_us, gathers_us) = match op_plan.protocol {
        Protocol::Ll => (PACKET_US, PACKET_US),
        Protocol::Simple => (FLAG_US + REDUCE_US, FLAG_US + COPY_US),
    };
    let of = |is_step: bool, us: f64| if is_step { us } else { 0.0 };
    let latency_us = of(reduces, reduces_us) + of(gathers, gathers_us);
    let norm_us = match (op_plan.norm, op_plan.protocol) {
        (None, _) => 0.0,
        (Some(norm), Protocol::Ll) if norm.warps > 1 => SQUARES_US,
        (Some(_), Protocol::Ll) => 0.0,
        (Some(_), Protocol::Simple) => FLAG_US + REDUCE_US,
    };
    // Chunks of sums are sent while others are added up.
    let link_us = match op_plan.protocol {
        Protocol::Ll if reduces && gathers => {
            bound.link_us * (1.0 / SENT_SHARE + 1.0 / SUMS_SHARE) / 2.0
        }
        _ => bound.link_us / SENT_SHARE,
    };
    START_US + latency_us + norm_us + link_us.max(bound.memory_us).max(put_us(&bound))
}
