//! The number of CTAs that send K and V.

use super::op_plan::{AttentionPlan, SUB_TILE_BYTES, SUB_TILE_COLS, grid_ctas};
use super::{cost, work};
use crate::device::Device;
use crate::plan::network::PUT_BYTES;
use crate::roofline::{Bound, Traffic};
use crate::topology::Topology;

/// The numbers of CTAs that may push. Eight nearly saturate the link. Each of them computes less in the meantime.
const PUSH_CTAS: [u32; 4] = [4, 8, 16, 32];

/// Across nodes, the number of own parts that are sent before the first part is forwarded. A NIC of 50 GB/s takes 170
/// µs for them, which is longer than a put takes to arrive.
pub const PUSH_LEAD: u32 = (8 << 20) / SUB_TILE_BYTES;
const _: () = assert!(PUSH_LEAD * SUB_TILE_BYTES >= 2 * PUT_BYTES);

/// Across nodes, the time in which a warp loads a part and raises its flags, µs.
const PART_US: f64 = 6.1;
/// Across nodes, the time in which a warp stores a part to one rank, µs. An SM stores about 50 GB/s.
const RECEIVER_US: f64 = 0.35;
/// Across nodes, the factor by which there are more such warps than would just suffice.
const PUSH_SPARE: f64 = 1.5;

/// Chooses `push_ctas`.
pub(super) fn choose(op_plan: &mut AttentionPlan, topology: Topology, device: &Device) {
    let world = topology.world();
    let traffic = work::traffic(op_plan, topology);
    let (usual, most) = match topology.nodes {
        1 => (PUSH_CTAS.to_vec(), (device.sm_count / 2).max(1)), // the others compute meanwhile
        _ => (
            vec![across(op_plan, topology, &traffic, device)],
            grid_ctas(op_plan, world, device),
        ),
    };
    let choices = op_plan
        .config
        .tuning
        .comm_ctas
        .map_or(usual, |ctas| vec![ctas]);
    let estimate = |ctas: &u32| {
        let op_plan = AttentionPlan {
            push_ctas: *ctas,
            ..op_plan.clone()
        };
        cost::attention_us(&op_plan, world, &traffic, device)
    };
    let best = choices
        .into_iter()
        .map(|ctas| ctas.min(most))
        .min_by(|a, b| estimate(a).total_cmp(&estimate(b)));
    op_plan.push_ctas = best.unwrap_or(most);
}

/// Returns the number of CTAs of which a warp must send and forward, so that the NICs are the bottleneck. On 4 GPUs as
/// 2x2, 3072 rows per rank took 4272, 2715, 2131 and 2161 µs with 16, 32, 64 and 128 CTAs. 6144 rows took 8242, 8397
/// and 8554 µs with 38, 48 and 128. Puts of 256 or 512 KiB, and a lead of 192 or 1024 parts, changed no time by more
/// than 2 %.
fn across(op_plan: &AttentionPlan, topology: Topology, traffic: &Traffic, device: &Device) -> u32 {
    let tile_parts = 2 * op_plan.shape.head_dim / u64::from(SUB_TILE_COLS);
    let parts =
        op_plan.kv_heads() * u64::from(op_plan.row_tiles) * tile_parts * u64::from(topology.nodes);
    let part_us = PART_US + RECEIVER_US * f64::from(topology.local_world);
    let bound = Bound::new(traffic, device);
    let ctas = PUSH_SPARE * parts as f64 * part_us / bound.compute_us.max(bound.nic_us);
    (ctas.ceil() as u32).max(1)
}
