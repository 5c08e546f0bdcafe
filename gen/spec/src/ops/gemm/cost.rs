//! The expected time of a candidate of a GEMM operator.

mod push;
mod tile;

pub(crate) use push::Push;
pub(crate) use tile::tile_us;
pub(super) use tile::{lone_tile_us, whole_tile_us};

use super::config::{GemmOp, GemmShape};
use super::core::CoreLayout;
use super::op_plan::{OUT_COLS, Split, TileOrder};
use super::spec::GemmSpec;
use crate::arch::Tile;
use crate::cost::CostTable;
use crate::device::Device;
use crate::roofline::{Bound, Traffic};
use tile::tile_of_spec_us;

/// Sub-tiles of a warpgroup.
pub(crate) const fn group_subs(tile: Tile) -> u32 {
    match Split::of(tile) {
        Split::Rows => tile.n / OUT_COLS,
        Split::Cols => tile.n / OUT_COLS / 2,
    }
}

/// Whether all CTAs that share a tile complete equal numbers of its sub-tiles.
const fn is_even(spec: GemmSpec<'_>, tile: Tile, order: &TileOrder) -> bool {
    (spec.group_cols(tile) / OUT_COLS).is_multiple_of(order.tail_splits)
}

/// The time in which the CTAs that share a tile exchange their sums through L2, µs. Only rows of C are exchanged.
fn exchange_us(spec: GemmSpec<'_>, tile: Tile, order: &TileOrder, costs: &CostTable) -> f64 {
    let splits = order.tail_splits;
    if splits == 1 || order.tail_tiles() == 0 {
        return 0.0;
    }
    if order.whole_tiles > 0 && is_even(spec, tile, order) {
        return costs.gemm.even_tail_us;
    }
    let subs = group_subs(tile);
    // The sub-tiles of sums of one sub-tile of C are completed together.
    let together = spec.epilogue().weight_cols();
    let completed = order.completed_subs(subs / together) * together;
    let sum_bytes = sum_bytes(tile, spec.shape);
    let stored = if splits > subs / completed {
        sum_bytes
    } else {
        sum_bytes * f64::from(subs - completed) / f64::from(subs)
    };
    let loaded = sum_bytes * f64::from(completed * (splits - 1)) / f64::from(subs);
    // Equal to `kInFlight` in mk/gemm/split_k.cuh.
    let in_flight = match subs {
        1 => 3,
        2 => 2,
        _ => 1,
    };
    let turns = completed * (splits - 1).div_ceil(in_flight);
    costs.gemm.split_k_sync_us
        + f64::from(turns) * costs.gemm.load_sums_us
        + (stored + loaded) / costs.gemm.sums_gb_s / 1e3
}

/// The time in which the CTAs of a cluster exchange their sums, µs. Only rows of C are exchanged.
fn cluster_exchange_us(tile: Tile, order: &TileOrder, shape: GemmShape, costs: &CostTable) -> f64 {
    let others = f64::from(order.tail_splits - 1) / f64::from(order.tail_splits);
    costs.gemm.cluster_sync_us
        + others * sum_bytes(tile, shape) / costs.gemm.cluster_sums_gb_s / 1e3
}

/// Bytes of a CTA's sums of a tile, without rows beyond C.
fn sum_bytes(tile: Tile, shape: GemmShape) -> f64 {
    let rows = shape.m.next_multiple_of(16).min(u64::from(tile.m)) as u32;
    f64::from(rows * tile.n * 4)
}

/// The slowdown of loads where two CTAs share each tile of the only round (`docs/performance.md#two-slices`). With granules of K, the
/// alternative to two slices is none. With rows at run time, only the larger slowdown has been measured.
fn two_slices_slowdown(
    spec: GemmSpec<'_>,
    tile: Tile,
    order: &TileOrder,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let costs = &device.costs().gemm;
    let bound = Bound::new(traffic, device);
    let is_slow = tile.n > 128 || bound.memory_us > bound.compute_us;
    if order.work_tiles() < device.sm_count / 2 {
        costs.two_slices_slowdown
    } else if spec.granules().is_some() {
        1.0
    } else if is_slow || spec.takes_rows() {
        costs.two_slices_slowdown
    } else if spec.op().reduces() {
        costs.two_slices_of_sums_slowdown
    } else {
        1.0
    }
}

/// The time of a GEMM alone.
struct GemmTime {
    /// The whole time, µs.
    us: f64,
    /// The time of the last round, µs.
    last_us: f64,
    /// The time after all of A and B has been loaded, µs.
    unfed_us: f64,
    /// The fraction of the SMs that compute, if there is only one round; otherwise 1.
    busy_share: f64,
    /// The part of the rate of memory that is lost to narrow tiles if all SMs compute.
    narrow_loss: f64,
    /// The overlap loss: the fraction of the shorter time, of computing and memory, that adds to the longer time.
    unseen_share: f64,
    /// `unmeasured_split_slowdown` if the split has not been measured; otherwise 1.
    doubt: f64,
}

impl GemmTime {
    fn new(
        spec: GemmSpec<'_>,
        tile: Tile,
        order: &TileOrder,
        has_clusters: bool,
        compute_ctas: u32,
        traffic: &Traffic,
        device: &Device,
    ) -> Self {
        let costs = device.costs();
        // If each call gives the rows, there may be too many tiles in the last round of the most rows to share them.
        let order = &match order.tail_tiles() * order.tail_splits > compute_ctas {
            true => TileOrder {
                tail_splits: 1,
                ..order.clone()
            },
            false => order.clone(),
        };
        // Clusters fill one GPC after the other, and the SMs of a GPC share its path to L2.
        let active = match has_clusters {
            true => device.sm_count,
            false => order.work_tiles().min(compute_ctas),
        };
        let m = spec.shape.m;
        let one = tile_of_spec_us(spec, tile, (active, has_clusters), device);
        let rounds = f64::from(order.whole_tiles / compute_ctas);
        let unfed_us = match has_clusters {
            true => cluster_exchange_us(tile, order, spec.shape, costs),
            false => exchange_us(spec, tile, order, costs),
        };
        let slowdown = match order.tail_splits {
            2 if rounds == 0.0 && !has_clusters => {
                two_slices_slowdown(spec, tile, order, traffic, device)
            }
            _ => 1.0,
        };
        let part_us = one / f64::from(order.tail_splits) * slowdown;
        let tail_us = match order.tail_tiles() {
            0 => 0.0,
            _ => part_us + unfed_us,
        };
        // A long GEMM is limited by power, which depends on the SMs at work and not on rounds.
        let even = traffic.flops as f64 / device.tflops(traffic.factors) / 1e6
            * f64::from(device.sm_count)
            / f64::from(compute_ctas);
        Self {
            us: (rounds * one + tail_us).max(even),
            last_us: tail_us.max(part_us),
            unfed_us,
            busy_share: match order.work_tiles() < compute_ctas {
                true => f64::from(order.work_tiles()) / f64::from(device.sm_count),
                false => 1.0,
            },
            narrow_loss: match (spec.op(), tile.n) {
                (GemmOp::Gemm, 64) => costs.gemm.narrow_tiles_loss,
                // 64 rows are as fast with any tile, but 16 rows are not (`docs/performance.md#two-slices`).
                (GemmOp::AgGemm, 64) if rounds > 0.0 && m < 64 => costs.gemm.narrow_tiles_loss,
                _ => 0.0,
            },
            unseen_share: if rounds == 0.0 {
                costs.overlap_loss
            } else {
                0.0
            },
            doubt: if rounds > 0.0 && !is_even(spec, tile, order) {
                costs.gemm.unmeasured_split_slowdown
            } else {
                1.0
            },
        }
    }

    /// The time of the GEMM if computing takes `compute_us`: the longer time, of computing and memory, and a loss. CTAs that share
    /// a tile exchange sums when all loads have ended. If memory takes equally long in two plans, the plan that computes faster is
    /// better, because memory is not at its full rate before all SMs have loads in flight.
    fn beside_memory_us(&self, compute_us: f64, traffic: &Traffic, device: &Device) -> f64 {
        let costs = device.costs();
        let idle_loss = costs.gemm.idle_sms_loss * (1.0 - self.busy_share);
        let rate = device.memory_gb_s * (1.0 - idle_loss - self.narrow_loss * self.busy_share);
        let memory_us = traffic.memory_bytes as f64 / rate / 1e3 + self.unfed_us;
        compute_us.max(memory_us) + self.unseen_share * compute_us.min(memory_us)
    }
}

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
    let gemm = GemmTime::new(
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
    let computed = gemm.beside_memory_us(compute * push.slowdown(costs), traffic, device);
    let (slices, splits) = (push.slices(), order.tail_splits);
    let bound = Bound::new(traffic, device);
    let us = if push == Push::None {
        computed
    } else if order.whole_tiles == 0 {
        // Each CTA waits for its rows. Meanwhile the CTA has filled its stages with B. If a tile needs several slices, the CTA
        // multiplies the first slices while later slices are sent.
        let sent_us = push.sent_us(&bound, traffic.link_bytes as f64, device);
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
        let rows_us = (costs.gemm.first_rows_us + sent_us).max(costs.put_us(&bound)) + rest_us;
        rows_us.max(loaded_us - costs.flag_us) + gemm.unfed_us
    } else {
        let near = costs.flag_us + push.sent_us(&bound, traffic.link_bytes as f64, device);
        computed.max(near.max(costs.put_us(&bound)) + gemm.last_us / f64::from(slices))
    };
    let unseen = if traffic.nic_bytes > 0 {
        costs.overlap_loss * compute
    } else {
        0.0
    };
    (costs.launch_us + us + unseen) * gemm.doubt
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
        let unseen = meeting.unseen_share(costs) * computed.min(sent);
        let norm_us = meeting.norm_us(spec, costs);
        return (costs.launch_us + computed.max(sent) + unseen + norm_us) * gemm.doubt;
    }
    (costs.launch_us + computed.max(sent).max(put) + costs.overlap_loss * computed) * gemm.doubt
}
