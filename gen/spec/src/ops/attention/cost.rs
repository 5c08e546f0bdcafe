//! The expected time of a candidate of an attention operator.

use super::op_plan::AttentionPlan;
use crate::device::Device;
use crate::roofline::{Bound, Traffic};

/// Expected time of attention on `world` ranks, µs.
pub(crate) fn attention_us(
    op_plan: &AttentionPlan,
    world: u32,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let costs = device.costs();
    let bound = Bound::new(traffic, device);
    let (sms, push_ctas) = (f64::from(device.sm_count), f64::from(op_plan.push_ctas));
    let rounds = f64::from(op_plan.tiles) / sms;
    let compute = bound.compute_us / costs.attention.mma_share * rounds.ceil() / rounds;
    // The time in which a CTA computes with the keys of one rank.
    let one_us = compute / rounds.ceil() / f64::from(world);
    let mut us = compute.max(bound.memory_us);
    let share = costs.store_share(compute, bound.link_us);
    if traffic.nic_bytes > 0 {
        // Keys of the last head come last, and half of the keys that its tiles meet.
        let link_us = costs.flag_us + bound.link_us / share;
        us = us.max(link_us.max(costs.put_us(&bound)) + one_us * f64::from(world) / 2.0);
    } else if traffic.link_bytes > 0 {
        let rate = (share * device.link_gb_s).min(costs.attention.kv_cta_gb_s * push_ctas);
        let push_us = costs.flag_us + traffic.link_bytes as f64 / rate / 1e3;
        // The first tiles wait for keys of all their heads, and compute with own keys until then.
        let first_us = (push_us / rounds).min(push_us) - one_us;
        us = (us + first_us.max(0.0) + push_us * push_ctas / sms).max(push_us);
    }
    costs.launch_us + us
}
