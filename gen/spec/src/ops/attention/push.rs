//! The number of CTAs that send K and V.

use super::op_plan::{AttentionPlan, SUB_TILE_BYTES, TILE_ROWS, grid_ctas};
use super::{cost, work};
use crate::device::Device;
use crate::parts::network::PUT_BYTES;
use crate::roofline::Bound;
use crate::topology::Topology;
use std::iter;

/// The numbers of CTAs that may push. Eight CTAs nearly saturate the link. A CTA that pushes computes less in the meantime.
const PUSH_CTAS: [u32; 4] = [4, 8, 16, 32];

/// Across nodes, the number of own parts that are sent before the first part is forwarded. A NIC of 50 GB/s takes 170
/// µs for these parts, which is longer than a put takes to arrive.
pub const PUSH_LEAD: u32 = (8 << 20) / SUB_TILE_BYTES;
const _: () = assert!(PUSH_LEAD * SUB_TILE_BYTES >= 2 * PUT_BYTES);

/// Chooses `push_ctas`. If each call gives the rows, no number of rows loses much by the choice.
pub(super) fn choose(op_plan: &mut AttentionPlan, topology: Topology, device: &Device) {
    let world = topology.world();
    let (usual, most) = match topology.nodes {
        1 => (PUSH_CTAS.to_vec(), (device.sm_count / 2).max(1)), // the others compute meanwhile
        _ => (
            vec![across(op_plan, topology, device)],
            grid_ctas(op_plan, world, device),
        ),
    };
    let choices = op_plan
        .config
        .tuning
        .comm_ctas
        .map_or(usual, |ctas| vec![ctas]);
    let choices: Vec<u32> = choices.into_iter().map(|ctas| ctas.min(most)).collect();
    // By number of rows: the times of calls with each choice, as shares of the time with the best choice.
    let losses: Vec<Vec<f64>> = with_fewer_rows(op_plan, world)
        .iter()
        .map(|of_rows| {
            let traffic = work::traffic(of_rows, topology);
            let us = choices.iter().map(|ctas| {
                let of_rows = AttentionPlan {
                    push_ctas: *ctas,
                    ..of_rows.clone()
                };
                cost::attention_us(&of_rows, world, &traffic, device)
            });
            let us: Vec<f64> = us.collect();
            let least = us.iter().copied().fold(f64::INFINITY, f64::min);
            us.into_iter().map(|us| us / least).collect()
        })
        .collect();
    let largest = |choice: usize| losses.iter().map(|of| of[choice]).fold(0.0, f64::max);
    let best = (0..choices.len()).min_by(|a, b| largest(*a).total_cmp(&largest(*b)));
    op_plan.push_ctas = best.map_or(most, |best| choices[best]);
}

/// Returns the plan. If each call gives the rows, also returns the plan for calls of half of the rows, of a quarter, and so on,
/// down to some tiles on each rank.
fn with_fewer_rows(op_plan: &AttentionPlan, world: u32) -> Vec<AttentionPlan> {
    let least = u64::from(world * op_plan.config.placement.segments() * TILE_ROWS);
    let fewer = |of_rows: &AttentionPlan| {
        let seq = of_rows.shape.seq / 2;
        (op_plan.takes_rows() && seq >= least).then(|| op_plan.of_rows(seq, world))
    };
    iter::successors(Some(op_plan.clone()), fewer).collect()
}

/// Returns the number of CTAs whose sending warps keep the NICs busy: a warp of each CTA sends and forwards
/// (`docs/performance.md#ctas-that-push-across-nodes`).
fn across(op_plan: &AttentionPlan, topology: Topology, device: &Device) -> u32 {
    let tile_parts = u64::from(op_plan.block_parts());
    let parts = op_plan.kv_heads()
        * u64::from(op_plan.key_tiles())
        * tile_parts
        * u64::from(topology.nodes);
    let costs = &device.costs().attention;
    let part_us = costs.part_us + costs.receiver_us * f64::from(topology.local_world);
    let bound = Bound::new(&work::traffic(op_plan, topology), device);
    let ctas = costs.spare_warps * parts as f64 * part_us / bound.compute_us.max(bound.nic_us);
    (ctas.ceil() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use crate::config::{AttentionConfig, AttentionOp, Dim};
    use crate::device::Device;
    use crate::ops::attention::plan;
    use crate::topology::Topology;

    fn push_ctas(seq: Dim) -> u32 {
        let config = AttentionConfig {
            batch: Dim::Static(4),
            seq,
            heads: Dim::Static(16),
            kv_heads: Dim::Static(16),
            head_dim: Dim::Static(128),
            ..AttentionConfig::new(AttentionOp::RingAttention)
        };
        let topology = Topology {
            nodes: 1,
            local_world: 2,
        };
        let shape = config.shape().expect("sizes");
        let plan = plan::plan(&config, shape, topology, &Device::h200()).expect("a plan");
        plan.op_plan.push_ctas
    }

    /// Long sequences need few CTAs that push, short sequences need many. A kernel for both has the number of CTAs that short
    /// sequences need: with the number for the longest sequence, 768 rows of each rank took 4.6 times as long as in a kernel of
    /// their own.
    #[test]
    fn a_kernel_for_all_lengths_has_the_pushing_ctas_of_short_sequences() {
        let (short, long) = (Dim::Static(1536), Dim::Static(24576));
        assert!(push_ctas(long) < push_ctas(short));
        assert_eq!(push_ctas(Dim::UpTo(24576)), push_ctas(short));
    }
}
