//! [`NodeMap`]: the nodes of a job, and the ranks of other nodes to which a rank puts.

use crate::bootstrap::HostMap;
use crate::error::{ClusterError, Error};

/// The ranks of a job, in nodes of equal size. The peers of a GPU are the GPUs with its local rank on the other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeMap {
    pub rank: u32,
    pub world: u32,
    pub nodes: u32,
    /// The ranks, by node and local rank.
    ranks: Vec<Vec<u32>>,
}

impl NodeMap {
    /// Creates the map. If the ranks are on several hosts, each host is a node. If they are on one host, its ranks are divided
    /// into `nodes` nodes in order.
    ///
    /// # Errors
    /// [`Error::Cluster`] if the nodes cannot have equal sizes, or if there are several hosts and their number is not
    /// `nodes`.
    pub fn new(rank: u32, hosts: &HostMap, nodes: u32) -> Result<Self, Error> {
        let world = hosts.world();
        let ranks = match hosts.count() {
            1 if nodes >= 2 && world.is_multiple_of(nodes) => {
                let all: Vec<u32> = (0..world).collect();
                let local_world = (world / nodes).max(1) as usize;
                all.chunks(local_world).map(<[u32]>::to_vec).collect()
            }
            count if count > 1 && count == nodes => hosts.all(),
            hosts => {
                return Err(Error::Cluster(ClusterError::Nodes {
                    nodes,
                    world,
                    hosts,
                }));
            }
        };
        Ok(Self {
            rank,
            world,
            nodes,
            ranks,
        })
    }

    /// Returns this rank's node and its local rank there.
    fn place(&self) -> (u32, u32) {
        let places = (0..).zip(&self.ranks).find_map(|(node, ranks)| {
            let number = ranks.iter().position(|rank| *rank == self.rank)?;
            Some((node, number as u32))
        });
        places.unwrap_or_default()
    }

    /// Returns the ranks of this rank's node, by local rank.
    pub fn local_ranks(&self) -> &[u32] {
        self.ranks
            .get(self.node() as usize)
            .map_or(&[], Vec::as_slice)
    }

    /// Returns whether ranks are numbered node by node.
    pub fn are_in_order(&self) -> bool {
        self.ranks.iter().flatten().copied().eq(0..self.world)
    }

    /// Returns this rank's node.
    pub fn node(&self) -> u32 {
        self.place().0
    }

    /// Returns this rank's local rank.
    pub fn local_rank(&self) -> u32 {
        self.place().1
    }

    /// Returns the ranks to which this rank puts, by peer number, in the order of their nodes.
    pub fn peers(&self) -> Vec<u32> {
        let (own, number) = self.place();
        let others = (0..)
            .zip(&self.ranks)
            .filter(|(node, _): &(u32, _)| *node != own);
        others.map(|(_, ranks)| ranks[number as usize]).collect()
    }

    /// Returns, for each peer, the peer number that this rank has on that peer.
    pub fn peer_indices(&self) -> Vec<u32> {
        let own = self.node();
        let others = (0..self.nodes).filter(|node| *node != own);
        others.map(|node| own - u32::from(own > node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &HostMap, nodes: u32) {
        let node_map = |rank| NodeMap::new(rank, hosts, nodes).expect("of equal size");
        for rank in 0..hosts.world() {
            let own = node_map(rank);
            assert_eq!(own.peers().len(), nodes as usize - 1);
            for (peer, number) in own.peers().iter().zip(own.peer_indices()) {
                assert_eq!(node_map(*peer).peers()[number as usize], rank);
                assert_eq!(node_map(*peer).local_rank(), own.local_rank());
                assert_ne!(node_map(*peer).node(), own.node());
            }
        }
    }

    #[test]
    fn peers_know_each_other() {
        for (world, nodes) in [(2, 2), (4, 2), (8, 2), (8, 4), (6, 3)] {
            check(&HostMap::one(world), nodes);
        }
    }

    /// Some launchers distribute ranks to hosts in turn.
    #[test]
    fn hosts_are_nodes_for_any_order_of_ranks() {
        check(&HostMap::from_hosts(&[b"b", b"a", b"b", b"a"]), 2);
        let hosts = HostMap::from_hosts(&[b"a", b"b", b"c", b"c", b"b", b"a"]);
        check(&hosts, 3);
        let node_map = NodeMap::new(4, &hosts, 3).expect("three hosts");
        assert_eq!((node_map.node(), node_map.local_rank()), (1, 1));
        assert_eq!(node_map.peers(), [5, 3]);
        assert_eq!(node_map.local_ranks(), [1, 4]);
        assert!(!node_map.are_in_order());
        let in_order = NodeMap::new(3, &HostMap::one(6), 3).expect("three nodes");
        assert!(in_order.are_in_order() && in_order.local_ranks() == [2, 3]);
    }

    #[test]
    fn nodes_have_equal_sizes_and_several_hosts_are_nodes() {
        for (world, nodes) in [(4, 1), (4, 0), (4, 3), (1, 2)] {
            assert!(matches!(
                NodeMap::new(0, &HostMap::one(world), nodes),
                Err(Error::Cluster(ClusterError::Nodes { hosts: 1, .. }))
            ));
        }
        let hosts = HostMap::from_hosts(&[b"a", b"b", b"a", b"b"]);
        let error = NodeMap::new(0, &hosts, 4).expect_err("two hosts are no four nodes");
        let text = error.to_string();
        assert!(text.contains("on 2 hosts"), "{text}");
    }
}
