//! The expected time of a candidate of a GEMM operator.

mod gemm_time;
mod push;
mod tile;

pub(crate) use gemm_time::group_subs;
pub(super) use gemm_time::{lone_tile_us, whole_tile_us};
pub(crate) use push::Push;
pub(crate) use tile::tile_us;

use super::config::GemmShape;
use super::core::CoreLayout;
use super::op_plan::TileOrder;
use super::spec::GemmSpec;
use crate::arch::Tile;
use crate::cost::CostTable;
use crate::device::Device;
use crate::roofline::{Bound, Traffic};
use gemm_time::{GemmTime, is_link_bound};

/// The most time of links, relative to the time of a product, for which the time that its CTAs wait for rows was measured.
const MOST_LINK_SHARE: f64 = 0.5;

/// Expected time of a candidate of `ag_gemm`, µs.
pub(super) fn estimate_us(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    order: &TileOrder,
    push: Push,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let costs = device.costs();
    let compute_ctas = device.sm_count - push.comm_ctas();
    let has_clusters = core.cluster.is_some();
    let mut gemm = GemmTime::new(
        spec,
        core.tile,
        order,
        has_clusters,
        compute_ctas,
        traffic,
        device,
    );
    let compute = match core.tile.m * core.tile.n < 128 * 128 && order.row_tiles > 1 {
        true => gemm.us * costs.gemm.small_tiles_slowdown,
        false => gemm.us,
    };
    let bound = Bound::new(traffic, device);
    let sent_us = push.sent_us(&bound, traffic.link_bytes as f64, device);
    let slices = push.slices();
    // What rows of other ranks cost was measured where links are idle for most of a call with constant rows.
    let is_brief = !spec.takes_rows() && bound.link_us <= MOST_LINK_SHARE * bound.compute_us;
    // CTAs that begin with rows of other ranks wait for the first slice, and multiply the last slice when the link has sent it.
    let slice = 1.0 / f64::from(slices);
    let late_us =
        push.first_us(costs) + (sent_us * slice).max(sent_us - gemm.tile_us * (1.0 - slice));
    let pushes_us = match is_brief {
        true => push.slows_by_us(sent_us, compute, order, costs),
        false => compute * (push.slowdown(costs) - 1.0),
    };
    if is_brief {
        gemm.reread_bytes = reread_bytes(spec, order, late_us, device);
    }
    let compute = compute + pushes_us;
    let computed = gemm.beside_memory_us(compute, traffic, device);
    let us = if push == Push::None {
        computed
    } else if order.whole_tiles == 0 {
        let sent = (slices, sent_us, costs.put_us(&bound));
        single_round_us(spec, core, order, sent, (&gemm, computed), costs)
    } else {
        let near = costs.flag_us + sent_us;
        let all_us = near.max(costs.put_us(&bound)) + gemm.last_us / f64::from(slices);
        match is_brief && order.begins_late(compute_ctas) {
            true => all_us.max(computed + late_us),
            false => all_us.max(computed),
        }
    };
    let unseen = if traffic.nic_bytes > 0 {
        costs.overlap_loss * compute
    } else {
        0.0
    };
    (costs.launch_us + us + unseen) * gemm.doubt
}

/// The time of a single round of a GEMM that takes `computed` µs. Rows are sent in `slices` in `sent_us`, and put in `put_us`.
fn single_round_us(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    order: &TileOrder,
    (slices, sent_us, put_us): (u32, f64, f64),
    (gemm, computed): (&GemmTime, f64),
    costs: &CostTable,
) -> f64 {
    let splits = order.tail_splits;
    // Each CTA waits for its rows. Meanwhile the CTA has filled its stages with B. If a tile needs several slices, the CTA
    // multiplies the first slices while later slices are sent.
    let steps = spec
        .shape
        .k
        .div_ceil((spec.types().tile_k() * splits).into()) as f64;
    let left = 1.0 - (f64::from(core.stages) / steps).min(1.0);
    let loaded_us = computed - gemm.unfed_us;
    let last_share = 1.0 / f64::from(slices.div_ceil(splits));
    let rest_us = loaded_us * left;
    let rest_us = (rest_us - sent_us * (1.0 - last_share)).max(rest_us * last_share);
    // CTAs with own rows have finished before and leave their share of L2 to the other CTAs.
    let share = match order.shard_row_tiles {
        Some(own) if splits == 1 => {
            f64::from(order.row_tiles) / f64::from((order.row_tiles - own).max(1))
        }
        _ => 1.0,
    };
    let rest_us = rest_us / share.min(costs.gemm.max_l2_share);
    let rows_us = (costs.gemm.first_rows_us + sent_us).max(put_us) + rest_us;
    rows_us.max(loaded_us - costs.flag_us) + gemm.unfed_us
}

/// Bytes of B that are loaded again, because some rows of A are multiplied later than others, by `late_us` if rows of all ranks are
/// multiplied together (`docs/performance.md#rows-of-other-ranks`). What is still in L2 is not loaded again.
fn reread_bytes(spec: GemmSpec<'_>, order: &TileOrder, late_us: f64, device: &Device) -> f64 {
    let bytes = (spec.shape.n * spec.shape.k * spec.types().b.bytes()) as f64;
    let kept = device.l2_bytes as f64 / 2.0;
    let passes = match order.shard_row_tiles {
        Some(own) if order.group_m > own => {
            let meanwhile = late_us * device.memory_gb_s * 1e3;
            1 + u32::from(meanwhile > kept)
        }
        Some(_) if bytes > kept => order.row_tiles.div_ceil(order.group_m),
        _ => 1,
    };
    f64::from(passes - 1) * bytes
}

/// How partial sums are exchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Meeting {
    /// The number of shots, 1 or 2.
    pub shots: u32,
    /// Ranks that add up tiles.
    pub owners: u32,
    /// Whether own tiles come after the tiles of all other owners.
    pub own_last: bool,
    /// Whether owners send results to all ranks.
    pub results: bool,
}

impl Meeting {
    /// The overlap loss: the fraction of the shorter time, of GEMM and transfers, that adds to the longer time.
    fn unseen_share(self, costs: &CostTable) -> f64 {
        match self.shots {
            2 => costs.gemm.two_shots_overlap_loss,
            _ => 0.0,
        }
    }

    /// The time that two shots take longer with large tiles, µs: the last tile is sent and added up after all products.
    fn large_tiles_us(self, tile: Tile, bound: &Bound, costs: &CostTable) -> f64 {
        match (self.shots, (tile.m, tile.n)) {
            (2, (128, 256)) if !is_link_bound(bound) => costs.gemm.two_shots_large_tiles_us,
            _ => 0.0,
        }
    }

    /// The time that norms take behind two shots, µs: few warps normalise while the others multiply.
    fn norm_us(self, spec: GemmSpec<'_>, costs: &CostTable) -> f64 {
        if self.shots != 2 || !spec.epilogue().normalises() {
            return 0.0;
        }
        let rows = match self.results {
            true => spec.shape.m,
            false => spec.shape.m.div_ceil(u64::from(self.owners)),
        };
        let bytes = rows * spec.shape.n * spec.types().c.bytes();
        costs.gemm.norm_us + bytes as f64 / (costs.gemm.norm_tb_s * 1e6)
    }
}

/// Expected time of a candidate of an operator that reduces, µs. `order` has each tile once.
pub(super) fn reduce_us(
    spec: GemmSpec<'_>,
    tile: Tile,
    order: &TileOrder,
    meeting: Option<Meeting>,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let costs = device.costs();
    let gemm = GemmTime::new(spec, tile, order, false, device.sm_count, traffic, device);
    let (compute, last_us) = (gemm.us, gemm.last_us);
    let Some(meeting) = meeting else {
        let computed = gemm.beside_memory_us(compute, traffic, device);
        return (costs.launch_us + computed) * gemm.doubt;
    };
    let least_us = traffic.link_bytes as f64 / device.link_gb_s / 1e3;
    let link = least_us
        / (costs.push_share - costs.gemm.partials_share_loss * (compute / least_us).min(1.0));
    // Remote stores and the GEMM's loads meet in L2 and at the SMs' ports.
    let slowdown = 1.0 + costs.gemm.store_loss * (link / compute).min(1.0);
    let computed = gemm.beside_memory_us(compute * slowdown, traffic, device);
    let first_us = last_us.min(compute);
    let sent = match meeting {
        Meeting {
            shots: 1, results, ..
        } => {
            // The warps that multiply also send. The stores of a tile that are still in flight partly overlap with the next tile.
            let is_crowded = order.tiles() > 2 * device.sm_count;
            let sent_us = least_us / costs.push_share
                * if is_crowded {
                    costs.gemm.one_shot_l2_spill_slowdown
                } else {
                    1.0
                };
            let hidden_us = costs.gemm.one_shot_overlap * sent_us.min(compute - first_us);
            compute + sent_us - hidden_us + costs.gemm.packets_us * if results { 2.0 } else { 1.0 }
        }
        // The link idles while own tiles are computed.
        Meeting {
            own_last: true,
            owners,
            results: false,
            ..
        } => {
            let own_us = compute / f64::from(owners);
            (first_us + link).max(compute - own_us) + own_us + costs.gemm.owner_add_us
        }
        Meeting { results, .. } => {
            let results_us = if results {
                costs.flag_us + costs.gemm.result_us
            } else {
                0.0
            };
            first_us + link + costs.flag_us + costs.gemm.owner_add_us + results_us
        }
    };
    // Sums for other nodes are put when the first tiles end. Results follow when the sums of other nodes arrive.
    let bound = Bound::new(traffic, device);
    let results_us = if meeting.results {
        costs.put_latency_us + costs.gemm.result_us
    } else {
        0.0
    };
    let put = first_us + costs.put_us(&bound) + costs.gemm.owner_add_us + results_us;
    if bound.nic_us == 0.0 {
        let sending_us = if is_link_bound(&bound) { sent } else { link };
        let unseen = meeting.unseen_share(costs) * computed.min(sending_us);
        let rest_us = meeting.norm_us(spec, costs) + meeting.large_tiles_us(tile, &bound, costs);
        return (costs.launch_us + computed.max(sent) + unseen + rest_us) * gemm.doubt;
    }
    (costs.launch_us + computed.max(sent).max(put) + costs.overlap_loss * computed) * gemm.doubt
}
