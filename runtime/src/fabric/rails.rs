//! [`Rails`]: which ranks of other nodes a rank puts to.

use crate::error::Error;

/// The ranks of a job in nodes of equal size, in order. A GPU's peers are those with its number on the other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rails {
    pub rank: u32,
    pub world: u32,
    pub nodes: u32,
}

impl Rails {
    /// # Errors
    /// [`Error::Nodes`] if nodes cannot be of equal size.
    pub fn new(rank: u32, world: u32, nodes: u32) -> Result<Self, Error> {
        if nodes < 2 || !world.is_multiple_of(nodes) {
            return Err(Error::Nodes { nodes, world });
        }
        Ok(Self { rank, world, nodes })
    }

    /// Ranks of a node.
    pub fn local_world(self) -> u32 {
        self.world / self.nodes
    }

    /// This rank's node.
    pub fn node(self) -> u32 {
        self.rank / self.local_world()
    }

    /// This rank among those of its node.
    pub fn local_rank(self) -> u32 {
        self.rank % self.local_world()
    }

    /// The ranks that this one puts to, by number of peer: in the order of their nodes.
    pub fn peers(self) -> Vec<u32> {
        let others = (0..self.nodes).filter(|node| *node != self.node());
        others
            .map(|node| node * self.local_world() + self.local_rank())
            .collect()
    }

    /// This rank's number among the peers of each of its peers.
    pub fn numbers_at_peers(self) -> Vec<u32> {
        let others = (0..self.nodes).filter(|node| *node != self.node());
        others
            .map(|node| self.node() - u32::from(self.node() > node))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_know_each_other() {
        for (world, nodes) in [(2, 2), (4, 2), (8, 2), (8, 4), (6, 3)] {
            let rails = |rank| Rails::new(rank, world, nodes).expect("of equal size");
            for rank in 0..world {
                let own = rails(rank);
                for (peer, number) in own.peers().iter().zip(own.numbers_at_peers()) {
                    assert_eq!(rails(*peer).peers()[number as usize], rank);
                    assert_eq!(rails(*peer).local_rank(), own.local_rank());
                    assert_ne!(rails(*peer).node(), own.node());
                }
            }
        }
    }

    #[test]
    fn nodes_are_of_equal_size() {
        for (world, nodes) in [(4, 1), (4, 0), (4, 3), (1, 2)] {
            assert!(matches!(
                Rails::new(0, world, nodes),
                Err(Error::Nodes { .. })
            ));
        }
    }
}
