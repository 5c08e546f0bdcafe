//! [`Rails`]: which ranks of other nodes a rank puts to.

use crate::bootstrap::Nodes;
use crate::error::Error;

/// The ranks of a job in nodes of equal size. A GPU's peers are those with its number on the other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rails {
    pub rank: u32,
    pub world: u32,
    pub nodes: u32,
    /// By node and number on it.
    ranks: Vec<Vec<u32>>,
}

impl Rails {
    /// Where ranks are on several hosts, these are the nodes; else the ranks are put into as many as are asked for, in
    /// order.
    ///
    /// # Errors
    /// [`Error::Nodes`] if nodes cannot be of equal size, or are not as many as hosts.
    pub fn new(rank: u32, hosts: &Nodes, nodes: u32) -> Result<Self, Error> {
        let world = hosts.world();
        let ranks = match hosts.count() {
            1 if nodes >= 2 && world.is_multiple_of(nodes) => {
                let all: Vec<u32> = (0..world).collect();
                let local_world = (world / nodes).max(1) as usize;
                all.chunks(local_world).map(<[u32]>::to_vec).collect()
            }
            count if count > 1 && count == nodes => hosts.all(),
            hosts => {
                return Err(Error::Nodes {
                    nodes,
                    world,
                    hosts,
                });
            }
        };
        Ok(Self {
            rank,
            world,
            nodes,
            ranks,
        })
    }

    /// This rank's node, and its number on it.
    fn place(&self) -> (u32, u32) {
        let places = (0..).zip(&self.ranks).find_map(|(node, ranks)| {
            let number = ranks.iter().position(|rank| *rank == self.rank)?;
            Some((node, number as u32))
        });
        places.unwrap_or_default()
    }

    /// The ranks of this rank's node, by their number on it.
    pub fn neighbours(&self) -> &[u32] {
        self.ranks
            .get(self.node() as usize)
            .map_or(&[], Vec::as_slice)
    }

    /// Whether ranks are numbered node by node.
    pub fn are_in_order(&self) -> bool {
        self.ranks.iter().flatten().copied().eq(0..self.world)
    }

    /// This rank's node.
    pub fn node(&self) -> u32 {
        self.place().0
    }

    /// This rank among those of its node.
    pub fn local_rank(&self) -> u32 {
        self.place().1
    }

    /// The ranks that this one puts to, by number of peer: in the order of their nodes.
    pub fn peers(&self) -> Vec<u32> {
        let (own, number) = self.place();
        let others = (0..)
            .zip(&self.ranks)
            .filter(|(node, _): &(u32, _)| *node != own);
        others.map(|(_, ranks)| ranks[number as usize]).collect()
    }

    /// This rank's number among the peers of each of its peers.
    pub fn numbers_at_peers(&self) -> Vec<u32> {
        let own = self.node();
        let others = (0..self.nodes).filter(|node| *node != own);
        others.map(|node| own - u32::from(own > node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &Nodes, nodes: u32) {
        let rails = |rank| Rails::new(rank, hosts, nodes).expect("of equal size");
        for rank in 0..hosts.world() {
            let own = rails(rank);
            assert_eq!(own.peers().len(), nodes as usize - 1);
            for (peer, number) in own.peers().iter().zip(own.numbers_at_peers()) {
                assert_eq!(rails(*peer).peers()[number as usize], rank);
                assert_eq!(rails(*peer).local_rank(), own.local_rank());
                assert_ne!(rails(*peer).node(), own.node());
            }
        }
    }

    #[test]
    fn peers_know_each_other() {
        for (world, nodes) in [(2, 2), (4, 2), (8, 2), (8, 4), (6, 3)] {
            check(&Nodes::one(world), nodes);
        }
    }

    /// Launchers may deal ranks out to hosts in turn.
    #[test]
    fn hosts_are_nodes_in_whatever_order_their_ranks_are() {
        check(&Nodes::from_hosts(&[b"b", b"a", b"b", b"a"]), 2);
        let hosts = Nodes::from_hosts(&[b"a", b"b", b"c", b"c", b"b", b"a"]);
        check(&hosts, 3);
        let rails = Rails::new(4, &hosts, 3).expect("three hosts");
        assert_eq!((rails.node(), rails.local_rank()), (1, 1));
        assert_eq!(rails.peers(), [5, 3]);
        assert_eq!(rails.neighbours(), [1, 4]);
        assert!(!rails.are_in_order());
        let in_order = Rails::new(3, &Nodes::one(6), 3).expect("three nodes");
        assert!(in_order.are_in_order() && in_order.neighbours() == [2, 3]);
    }

    #[test]
    fn nodes_are_of_equal_size_and_hosts_where_there_are_several() {
        for (world, nodes) in [(4, 1), (4, 0), (4, 3), (1, 2)] {
            assert!(matches!(
                Rails::new(0, &Nodes::one(world), nodes),
                Err(Error::Nodes { hosts: 1, .. })
            ));
        }
        let hosts = Nodes::from_hosts(&[b"a", b"b", b"a", b"b"]);
        let error = Rails::new(0, &hosts, 4).expect_err("two hosts are no four nodes");
        let text = error.to_string();
        assert!(text.contains("on 2 hosts"), "{text}");
    }
}
