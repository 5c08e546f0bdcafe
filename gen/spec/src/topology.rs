//! [`Topology`]: nodes, and GPUs on each.

use serde::Serialize;
use std::fmt;

/// Nodes with equal numbers of GPUs, one rank per GPU, numbered node by node. GPUs of a node reach each other's memory. GPU g of a
/// node puts to GPU g of the other nodes, its *peers*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Topology {
    /// Nodes, at least 1.
    pub nodes: u32,
    /// GPUs of each node, at least 1.
    pub local_world: u32,
}

impl Topology {
    /// A topology of one rank.
    pub const ALONE: Self = Self {
        nodes: 1,
        local_world: 1,
    };

    /// All ranks.
    #[must_use]
    pub const fn world(self) -> u32 {
        self.nodes * self.local_world
    }

    /// The node of a rank.
    #[must_use]
    pub const fn node_of(self, rank: u32) -> u32 {
        rank / self.local_world
    }

    /// The local rank: the number of a rank on its node.
    #[must_use]
    pub const fn local_of(self, rank: u32) -> u32 {
        rank % self.local_world
    }

    /// The first rank of a node.
    #[must_use]
    pub const fn first_of(self, node: u32) -> u32 {
        node * self.local_world
    }

    /// The nodes to which a rank puts.
    #[must_use]
    pub const fn peers(self) -> u32 {
        self.nodes - 1
    }

    /// The number of destinations of data that a rank sends once to each node: the ranks of its own node, and the other
    /// nodes.
    #[must_use]
    pub const fn destinations(self) -> u32 {
        self.local_world + self.peers()
    }

    /// Ranks of other nodes.
    #[must_use]
    pub const fn remote(self) -> u32 {
        self.world() - self.local_world
    }
}

/// The form in a kernel's name: `8`, or `2x4` for two nodes of four ranks.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nodes {
            1 => self.local_world.fmt(f),
            nodes => write!(f, "{nodes}x{}", self.local_world),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbered_node_by_node() {
        for (nodes, local_world) in [(1, 8), (2, 2), (3, 5), (64, 8)] {
            let topology = Topology { nodes, local_world };
            assert_eq!(topology.remote() + local_world, topology.world());
            for rank in 0..topology.world() {
                let node = topology.node_of(rank);
                assert!(node < nodes);
                assert_eq!(topology.first_of(node) + topology.local_of(rank), rank);
            }
        }
    }
}
