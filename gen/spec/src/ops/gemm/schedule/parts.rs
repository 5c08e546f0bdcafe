//! [`Parts`]: the parts of a plan that the messages of all GEMM operators need.

use crate::cost::CostTable;
use crate::ops::gemm::op_plan::{GemmPlan, TileOrder};
use crate::topology::Topology;

/// The parts of a plan that both kinds of messages need.
pub(super) struct Parts {
    pub plan: GemmPlan,
    pub topology: Topology,
    pub costs: &'static CostTable,
    /// Warps of a CTA that communicates.
    pub warps: u32,
    /// The time of a tile that one CTA computes alone, µs.
    pub tile_us: f64,
}

impl Parts {
    /// The workers that push or forward: all warps of the communication CTAs but two.
    pub fn senders(&self) -> u32 {
        (self.plan.comm_ctas * self.warps).saturating_sub(2).max(1)
    }

    /// The time in which a sender stores `bytes` bytes while all senders store, µs.
    pub fn store_us(&self, bytes: u64) -> f64 {
        let share = f64::from(self.senders()) / f64::from(self.plan.comm_ctas.max(1));
        bytes as f64 * share / self.costs.comm_cta_gb_s / 1e3
    }

    /// The tile of a turn of the compute CTAs, its time, and whether the turn completes the tile. CTAs that share a tile of the last
    /// round complete it together; here the last of these CTAs does.
    pub fn work(&self, turn: u32) -> Option<(u32, f64, bool)> {
        let TileOrder {
            whole_tiles,
            tail_splits,
            ..
        } = self.plan.order;
        if turn >= self.plan.order.work_tiles() {
            return None;
        }
        if turn < whole_tiles {
            return Some((turn, self.tile_us, true));
        }
        let part = (turn - whole_tiles) % tail_splits;
        let tile = whole_tiles + (turn - whole_tiles) / tail_splits;
        Some((
            tile,
            self.tile_us / f64::from(tail_splits),
            part + 1 == tail_splits,
        ))
    }

    /// The row tile and the column tile at an index of the raster, as `raster` in mk/gemm/tile_scheduler.cuh. Only the row is of
    /// interest.
    pub fn raster_row(&self, index: u32) -> u32 {
        let order = &self.plan.order;
        let per_group = order.group_m * order.col_tiles;
        let first = index / per_group * order.group_m;
        let rows = order.group_m.min(order.row_tiles - first);
        first + index % per_group % rows
    }
}
