//! The expected time of a GEMM beside memory, without the transfers of other ranks.

use super::tile::{Sharing, tile_of_spec_us};
use crate::arch::Tile;
use crate::cost::CostTable;
use crate::device::Device;
use crate::ops::gemm::config::{GemmOp, GemmShape};
use crate::ops::gemm::op_plan::{GemmPlan, OUT_COLS, Split, TileOrder};
use crate::ops::gemm::spec::GemmSpec;
use crate::roofline::{Bound, Traffic};

/// Whether links take so long, relative to the product, that stores to other ranks crowd out loads. On 2×H200, links of 0.53 of the
/// product (4096 rows of 4096 columns of 2048) do not; on 2×H100, links of 1.05 (8192 rows of 4096 columns of 1024) do.
pub(super) fn is_link_bound(bound: &Bound) -> bool {
    bound.link_us > 0.6 * bound.compute_us
}

/// Sub-tiles of a warpgroup.
pub(crate) const fn group_subs(tile: Tile) -> u32 {
    match Split::of(tile) {
        Split::Rows => tile.n / OUT_COLS,
        Split::Cols => tile.n / OUT_COLS / 2,
    }
}

/// Whether all CTAs that share a tile complete equal numbers of its sub-tiles.
fn is_even(spec: GemmSpec<'_>, tile: Tile, order: &TileOrder) -> bool {
    let units = spec.group_cols(tile) / OUT_COLS / spec.subs_together(tile);
    units.is_multiple_of(order.tail_splits)
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
    let completed = order.completed_subs(subs / together, spec.subs_together(tile)) * together;
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

/// The part of the rate of memory that is lost to narrow tiles if all SMs compute.
fn narrow_loss(spec: GemmSpec<'_>, tile: Tile, rounds: f64, costs: &CostTable) -> f64 {
    match (spec.op(), tile.n) {
        (GemmOp::Gemm, 64) => costs.gemm.narrow_tiles_loss,
        // 64 rows are as fast with any tile, but 16 rows are not (`docs/performance.md#two-slices`).
        (GemmOp::AgGemm, 64) if rounds > 0.0 && spec.shape.m < 64 => costs.gemm.narrow_tiles_loss,
        _ => 0.0,
    }
}

/// The time of a GEMM alone.
pub(super) struct GemmTime {
    /// The whole time, µs.
    pub us: f64,
    /// The time of a tile that one CTA computes, µs.
    pub tile_us: f64,
    /// The time of the last round, µs.
    pub last_us: f64,
    /// The time after all of A and B has been loaded, µs.
    pub unfed_us: f64,
    /// Bytes of B that are loaded again.
    pub reread_bytes: f64,
    /// The fraction of the SMs that compute, if there is only one round; otherwise 1.
    busy_share: f64,
    /// The part of the rate of memory that is lost to narrow tiles if all SMs compute.
    narrow_loss: f64,
    /// The overlap loss: the fraction of the shorter time, of computing and memory, that adds to the longer time.
    unseen_share: f64,
    /// `unmeasured_split_slowdown` if the split has not been measured; otherwise 1.
    pub doubt: f64,
}

impl GemmTime {
    pub fn new(
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
        let bound = Bound::new(traffic, device);
        let sharing = Sharing {
            active,
            has_clusters,
            is_link_bound: is_link_bound(&bound),
        };
        let one = tile_of_spec_us(spec, tile, sharing, device);
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
            tile_us: one,
            last_us: tail_us.max(part_us),
            unfed_us,
            reread_bytes: 0.0,
            busy_share: match order.work_tiles() < compute_ctas {
                true => f64::from(order.work_tiles()) / f64::from(device.sm_count),
                false => 1.0,
            },
            narrow_loss: narrow_loss(spec, tile, rounds, costs),
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
    pub fn beside_memory_us(&self, compute_us: f64, traffic: &Traffic, device: &Device) -> f64 {
        let costs = device.costs();
        let idle_loss = costs.gemm.idle_sms_loss * (1.0 - self.busy_share);
        let rate = device.memory_gb_s * (1.0 - idle_loss - self.narrow_loss * self.busy_share);
        let bytes = traffic.memory_bytes as f64 + self.reread_bytes;
        let memory_us = bytes / rate / 1e3 + self.unfed_us;
        compute_us.max(memory_us) + self.unseen_share * compute_us.min(memory_us)
    }
}

/// The time of a tile that one CTA computes alone, beside all other tiles of a plan with communication CTAs, µs: the time of the whole
/// product over its rounds. `slowdown` is the factor by which communication slows down the product.
pub(in crate::ops::gemm) fn whole_tile_us(
    plan: &GemmPlan,
    spec: GemmSpec<'_>,
    slowdown: f64,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let (order, ctas) = (&plan.order, device.sm_count - plan.comm_ctas);
    let gemm = GemmTime::new(
        spec,
        plan.tile,
        order,
        plan.cluster.is_some(),
        ctas,
        traffic,
        device,
    );
    let us = gemm.beside_memory_us(gemm.us * slowdown, traffic, device);
    let last = match order.tail_tiles() {
        0 => 0.0,
        _ => 1.0 / f64::from(order.tail_splits),
    };
    us / (f64::from(order.whole_tiles / ctas) + last)
}

/// The time of a tile that one CTA computes while most CTAs wait, µs.
pub(in crate::ops::gemm) fn lone_tile_us(
    plan: &GemmPlan,
    spec: GemmSpec<'_>,
    device: &Device,
) -> f64 {
    let sharing = Sharing {
        active: 1,
        has_clusters: false,
        is_link_bound: false,
    };
    tile_of_spec_us(spec, plan.tile, sharing, device)
}
