//! [`Workspace`]: the memory of an operator, which the ranks write for each other.

use crate::fabric::endpoint::Fabric;
use crate::fabric::node_map::NodeMap;
use crate::heap::Block;
use crate::shared::Shared;
use mkernel_spec::abi::MAX_RANKS;
use mkernel_spec::fabric::KernelEndpoint;
use std::sync::Arc;

/// The workspaces of an operator's ranks.
pub(crate) struct Workspace {
    block: Block,
    /// The addresses of the workspaces of this node's ranks, by local rank. Unused entries are 0.
    addresses: [u64; MAX_RANKS],
    local_rank: u32,
    fabric: Option<Arc<Fabric>>,
}

impl Workspace {
    /// Makes a block the workspace of an operator. `nodes` is `None` if all ranks are on one node, and `fabric` if the kernel sends
    /// nothing between nodes.
    pub fn new(
        shared: &Shared,
        block: Block,
        nodes: Option<&NodeMap>,
        fabric: Option<Arc<Fabric>>,
    ) -> Self {
        let of_host = block.addresses();
        let Some(node_map) = nodes else {
            return Self {
                block,
                addresses: of_host,
                local_rank: shared.rank,
                fabric: None,
            };
        };
        let mut addresses = [0; MAX_RANKS];
        for (address, rank) in addresses.iter_mut().zip(node_map.local_ranks()) {
            *address = of_host[shared.cluster.hosts.local_rank(*rank)];
        }
        Self {
            block,
            addresses,
            local_rank: node_map.local_rank(),
            fabric,
        }
    }

    /// Returns the addresses of the workspaces of this node's ranks, by local rank. Unused entries are 0.
    pub fn addresses(&self) -> [u64; MAX_RANKS] {
        self.addresses
    }

    pub fn local_rank(&self) -> u32 {
        self.local_rank
    }

    /// Returns the address of this rank's workspace.
    #[cfg(feature = "testing")]
    pub fn own(&self) -> u64 {
        self.addresses[self.local_rank as usize]
    }

    pub fn fabric(&self) -> Option<&Arc<Fabric>> {
        self.fabric.as_ref()
    }

    /// Returns the endpoint in the form that kernels use. The endpoint is empty without a fabric.
    pub fn endpoint(&self) -> KernelEndpoint {
        self.fabric
            .as_ref()
            .map_or_else(KernelEndpoint::default, |fabric| {
                fabric.for_kernels(self.block.region(), self.block.offset_bytes())
            })
    }
}
