//! The messages of GEMM operators across nodes.

mod gather;
mod reduce;

use super::op_plan::{GemmPlan, TileOrder};
use super::spec::GemmSpec;
use crate::cost::CostTable;
use crate::device::Device;
use crate::parts::schedule::{Action, Lane, Pace, Schedule, Symmetry};
use crate::roofline::Traffic;
use crate::topology::Topology;
use gather::Gather;
use reduce::Reduce;

/// The messages of a GEMM operator.
pub(crate) struct GemmSchedule {
    topology: Topology,
    pace: Pace,
    lanes: Vec<Lane>,
    way: Way,
}

enum Way {
    Gather(Gather),
    Reduce(Reduce),
}

/// The parts of a plan that both kinds of messages need.
struct Parts {
    plan: GemmPlan,
    topology: Topology,
    costs: &'static CostTable,
    /// Warps of a CTA that communicates.
    warps: u32,
    /// The time of a tile that one CTA computes alone, µs.
    tile_us: f64,
}

impl GemmSchedule {
    /// Creates the messages; `None` if ranks exchange nothing.
    pub fn new(
        plan: &GemmPlan,
        (topology, traffic): (Topology, &Traffic),
        device: &Device,
    ) -> Option<Self> {
        let config = plan.config;
        let spec = GemmSpec {
            ranks: topology,
            topology,
            config: &config,
            shape: plan.shape,
        };
        let (way, pace, lanes) = match (&plan.reduction, &plan.chunks) {
            (Some(reduction), _) => {
                let (reduce, pace) = Reduce::new((plan, reduction), spec, traffic, device);
                let lanes = reduce.lanes(device.sm_count);
                (Way::Reduce(reduce), pace, lanes)
            }
            (None, Some(chunks)) => {
                let (gather, pace) = Gather::new((plan, chunks), spec, traffic, device);
                let lanes = gather.lanes(device.sm_count);
                (Way::Gather(gather), pace, lanes)
            }
            (None, None) => return None,
        };
        Some(Self {
            topology,
            pace,
            lanes,
            way,
        })
    }
}

impl Schedule for GemmSchedule {
    fn topology(&self) -> Topology {
        self.topology
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn counters(&self) -> u32 {
        match &self.way {
            Way::Gather(gather) => gather.counters(),
            Way::Reduce(reduce) => reduce.counters(),
        }
    }

    fn symmetry(&self) -> Symmetry {
        let is_even = match &self.way {
            Way::Gather(gather) => gather.is_even(),
            // All ranks put equal numbers of tiles. The last ranks may have fewer tiles to compute.
            Way::Reduce(_) => true,
        };
        match is_even {
            true => Symmetry::Even,
            false => Symmetry::Uneven,
        }
    }

    fn action(&self, rank: u32, lane: usize, list: u32, turn: u32) -> Option<Action> {
        let turn = list + turn * self.lanes[lane].workers;
        match &self.way {
            Way::Gather(gather) => gather.action(rank, lane, turn),
            Way::Reduce(reduce) => reduce.action(rank, lane, turn),
        }
    }
}

impl Parts {
    /// The workers that push or forward: all warps of the communication CTAs but two.
    fn senders(&self) -> u32 {
        (self.plan.comm_ctas * self.warps).saturating_sub(2).max(1)
    }

    /// The time in which one of these workers stores `bytes` bytes while all of them store, µs.
    fn store_us(&self, bytes: u64) -> f64 {
        let share = f64::from(self.senders()) / f64::from(self.plan.comm_ctas.max(1));
        bytes as f64 * share / self.costs.comm_cta_gb_s / 1e3
    }

    /// The tile of a turn of the compute CTAs, its time, and whether the turn completes the tile. CTAs that share a tile of the last
    /// round complete it together; here the last of these CTAs does.
    fn work(&self, turn: u32) -> Option<(u32, f64, bool)> {
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
    fn raster_row(&self, index: u32) -> u32 {
        let order = &self.plan.order;
        let per_group = order.group_m * order.col_tiles;
        let first = index / per_group * order.group_m;
        let rows = order.group_m.min(order.row_tiles - first);
        first + index % per_group % rows
    }
}
