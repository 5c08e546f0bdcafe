//! The messages of GEMM operators across nodes.

mod gather;
mod parts;
mod reduce;

use super::op_plan::GemmPlan;
use super::spec::GemmSpec;
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
