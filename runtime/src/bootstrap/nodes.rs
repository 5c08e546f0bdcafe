//! Which ranks share a host.

use super::ProtocolFault;
use super::wire::Reader;

/// The hosts of a job, called nodes, numbered in the order of their first ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// By rank.
    of_rank: Vec<u32>,
}

impl Nodes {
    /// All ranks on one node.
    pub fn one(world: u32) -> Self {
        Self {
            of_rank: vec![0; world as usize],
        }
    }

    /// From what tells hosts apart, by rank.
    pub fn from_hosts(hosts: &[&[u8]]) -> Self {
        let mut known: Vec<&[u8]> = Vec::new();
        let mut of_rank = Vec::with_capacity(hosts.len());
        for &host in hosts {
            let place = known.iter().position(|known| *known == host);
            of_rank.push(place.unwrap_or(known.len()) as u32);
            if place.is_none() {
                known.push(host);
            }
        }
        Self { of_rank }
    }

    /// How many ranks there are.
    pub fn world(&self) -> u32 {
        self.of_rank.len() as u32
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.of_rank.iter().max().map_or(0, |last| last + 1)
    }

    /// The ranks of `node`, ascending.
    pub fn ranks(&self, node: u32) -> Vec<u32> {
        let ranks = (0..).zip(&self.of_rank);
        ranks
            .filter(|(_, of)| **of == node)
            .map(|(rank, _)| rank)
            .collect()
    }

    /// The ranks that share `rank`'s node, itself too, ascending.
    pub fn neighbours(&self, rank: u32) -> Vec<u32> {
        self.ranks(self.of_rank.get(rank as usize).copied().unwrap_or(u32::MAX))
    }

    /// The number of `rank` on its node.
    pub fn local_rank(&self, rank: u32) -> usize {
        let neighbours = self.neighbours(rank);
        neighbours.iter().take_while(|r| **r < rank).count()
    }

    /// The ranks of every node.
    pub fn all(&self) -> Vec<Vec<u32>> {
        (0..self.count()).map(|node| self.ranks(node)).collect()
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let numbers = self.of_rank.iter().flat_map(|node| node.to_le_bytes());
        to.extend(numbers);
    }

    /// The nodes of `world` ranks; each node's number is that of an earlier rank, or the next.
    pub(super) fn decode(reader: &mut Reader<'_>, world: u32) -> Result<Self, ProtocolFault> {
        let mut next = 0;
        let mut of_rank = Vec::new();
        for _ in 0..world {
            let node = reader.u32()?;
            if node > next {
                return Err(ProtocolFault::Malformed);
            }
            next = next.max(node + 1);
            of_rank.push(node);
        }
        Ok(Self { of_rank })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_by_their_first_rank() {
        let nodes = Nodes::from_hosts(&[b"b", b"a", b"b", b"c"]);
        assert_eq!(nodes.all(), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(nodes.neighbours(2), [0, 2]);
        assert_eq!((nodes.local_rank(0), nodes.local_rank(2)), (0, 1));
        assert_eq!(nodes.neighbours(9), [] as [u32; 0]);
        assert_eq!(Nodes::one(2).all(), [vec![0, 1]]);
    }

    #[test]
    fn they_survive_the_wire_and_nothing_else_does() {
        let nodes = Nodes::from_hosts(&[b"b", b"a", b"b", b"c"]);
        let mut bytes = Vec::new();
        nodes.encode(&mut bytes);
        assert_eq!(Nodes::decode(&mut Reader(&bytes), 4), Ok(nodes));
        let malformed = Err(ProtocolFault::Malformed);
        assert_eq!(Nodes::decode(&mut Reader(&bytes), 5), malformed);
        let gap: Vec<u8> = [0u32, 2].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(Nodes::decode(&mut Reader(&gap), 2), malformed);
        let last = u32::MAX.to_le_bytes();
        assert_eq!(Nodes::decode(&mut Reader(&last), 1), malformed);
    }
}
