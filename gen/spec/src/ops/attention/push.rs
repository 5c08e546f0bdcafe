//! How many CTAs send K and V.

use super::op_plan::{AttentionPlan, SUB_TILE_BYTES, SUB_TILE_COLS, grid_ctas};
use super::{cost, work};
use crate::device::Device;
use crate::plan::network::PUT_BYTES;
use crate::roofline::{Bound, Traffic};
use crate::topology::Topology;

/// CTAs that may push: eight nearly fill the link; each is missing where there is enough to compute.
const PUSH_CTAS: [u32; 4] = [4, 8, 16, 32];

/// Across nodes: own parts that are sent before the first that is relayed. A NIC of 50 GB/s takes 170 µs for them, more than a
/// put takes to come.
pub const PUSH_LEAD: u32 = (8 << 20) / SUB_TILE_BYTES;
const _: () = assert!(PUSH_LEAD * SUB_TILE_BYTES >= 2 * PUT_BYTES);

/// Across nodes: what a warp takes to load a part, store it, and raise flags, µs …
const PART_US: f64 = 6.1;
/// … and for each that it is stored to: an SM stores some 50 GB/s …
const RECEIVER_US: f64 = 0.35;
/// … and how many more such warps there are than would be just enough.
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

/// Of how many CTAs a warp must send and relay, so that nobody waits for them but for the NICs. On 4 GPUs as 2x2, 3072 rows each
/// took 4272, 2715, 2131 and 2161 µs with 16, 32, 64 and 128; 6144 rows 8242, 8397 and 8554 with 38, 48 and 128.
/// Puts of 256 or 512 KiB, and a lead of 192 or 1024 parts, changed no time by more than 2 %.
fn across(op_plan: &AttentionPlan, topology: Topology, traffic: &Traffic, device: &Device) -> u32 {
    let tile_parts = 2 * op_plan.shape.head_dim / u64::from(SUB_TILE_COLS);
    let parts =
        op_plan.kv_heads() * u64::from(op_plan.row_tiles) * tile_parts * u64::from(topology.nodes);
    let part_us = PART_US + RECEIVER_US * f64::from(topology.local_world);
    let bound = Bound::new(traffic, device);
    let ctas = PUSH_SPARE * parts as f64 * part_us / bound.compute_us.max(bound.nic_us);
    (ctas.ceil() as u32).max(1)
}
