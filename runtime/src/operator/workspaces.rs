//! [`Workspaces`]: the memory of an operator that its ranks write for each other.

use crate::fabric::endpoint::Fabric;
use crate::launch::params::FabricPointers;
use crate::symmetric::Symmetric;
use mkernel_spec::abi::MAX_RANKS;
use std::sync::Arc;

/// The workspaces of an operator's ranks.
pub(crate) enum Workspaces {
    /// The workspaces of all ranks, which are on one node.
    OneNode(Arc<Symmetric>),
    /// The workspaces of this node's ranks. They are region 0 of the fabric.
    ManyNodes {
        fabric: Arc<Fabric>,
        workspaces: [u64; MAX_RANKS],
        local_rank: u32,
    },
}

impl Workspaces {
    pub fn fabric(&self) -> Option<&Arc<Fabric>> {
        match self {
            Self::OneNode(_) => None,
            Self::ManyNodes { fabric, .. } => Some(fabric),
        }
    }

    pub fn fabric_pointers(&self) -> FabricPointers {
        self.fabric()
            .map_or_else(FabricPointers::default, |fabric| FabricPointers {
                ring: fabric.ring(),
                arrivals: fabric.arrivals(),
            })
    }
}
