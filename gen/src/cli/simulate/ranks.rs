//! The ranks that are simulated: all ranks, or one rank for all ranks that act alike.

use mkernel_spec::Topology;

/// The ranks for which others stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Every rank is simulated.
    None,
    /// Local rank 0 of each node stands for all ranks of the node.
    Nodes,
    /// Rank 0 stands for all ranks.
    All,
}

/// The ranks that are simulated. A message goes to the simulated rank that stands for its receiver, which is exact if all ranks send
/// equal messages over equal distances: what a rank sends is then what another rank sends to it at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    pub topology: Topology,
    pub fold: Fold,
}

impl Ranks {
    /// The number of simulated ranks.
    pub const fn count(self) -> u32 {
        match self.fold {
            Fold::None => self.topology.world(),
            Fold::Nodes => self.topology.nodes,
            Fold::All => 1,
        }
    }

    /// The simulated rank that stands for `rank`, by its number among the simulated ranks.
    pub const fn number_of(self, rank: u32) -> u32 {
        match self.fold {
            Fold::None => rank,
            Fold::Nodes => self.topology.node_of(rank),
            Fold::All => 0,
        }
    }

    /// The simulated rank with a number.
    pub const fn rank(self, number: u32) -> u32 {
        match self.fold {
            Fold::None => number,
            Fold::Nodes => self.topology.first_of(number),
            Fold::All => 0,
        }
    }

    /// The number of the peer `to` of a simulated rank: the nodes between both.
    pub const fn peer(self, number: u32, to: u32) -> u32 {
        let from = self.topology.node_of(self.rank(number));
        (self.topology.node_of(to) + self.topology.nodes - from - 1) % self.topology.nodes
    }
}
