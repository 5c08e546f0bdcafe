//! [`HostMap`]: the assignment of ranks to hosts.

use super::wire::Reader;
use crate::error::ProtocolFault;

/// The hosts of a job, numbered in the order of their first ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostMap {
    /// The host of each rank.
    of_rank: Vec<u32>,
}

impl HostMap {
    /// Returns a map with all ranks on one host.
    pub fn one(world: u32) -> Self {
        Self {
            of_rank: vec![0; world as usize],
        }
    }

    /// Returns the map of ranks whose hosts have these ids, by rank.
    pub fn from_hosts<T: PartialEq>(hosts: &[T]) -> Self {
        let mut known: Vec<&T> = Vec::new();
        let mut of_rank = Vec::with_capacity(hosts.len());
        for host in hosts {
            let index = known.iter().position(|known| *known == host);
            of_rank.push(index.unwrap_or(known.len()) as u32);
            if index.is_none() {
                known.push(host);
            }
        }
        Self { of_rank }
    }

    /// Returns the map of the group whose ranks are `members`, in this order. Hosts without a member are left out.
    pub fn of_group(&self, members: &[u32]) -> Self {
        let hosts = members.iter().map(|rank| self.of_rank.get(*rank as usize));
        Self::from_hosts(&hosts.collect::<Vec<_>>())
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> u32 {
        self.of_rank.len() as u32
    }

    /// Returns the number of hosts.
    pub fn count(&self) -> u32 {
        self.of_rank.iter().max().map_or(0, |last| last + 1)
    }

    /// Returns the ranks of `host` in ascending order.
    pub fn ranks(&self, host: u32) -> Vec<u32> {
        let ranks = (0..).zip(&self.of_rank);
        ranks
            .filter(|(_, of)| **of == host)
            .map(|(rank, _)| rank)
            .collect()
    }

    /// Returns the ranks that share `rank`'s host, including `rank`, in ascending order.
    pub fn local_ranks(&self, rank: u32) -> Vec<u32> {
        self.ranks(self.of_rank.get(rank as usize).copied().unwrap_or(u32::MAX))
    }

    /// Returns the index of `rank` among the ranks of its host.
    pub fn local_rank(&self, rank: u32) -> usize {
        let local_ranks = self.local_ranks(rank);
        local_ranks.iter().take_while(|r| **r < rank).count()
    }

    /// Returns the ranks of every host.
    pub fn all(&self) -> Vec<Vec<u32>> {
        (0..self.count()).map(|host| self.ranks(host)).collect()
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let numbers = self.of_rank.iter().flat_map(|host| host.to_le_bytes());
        to.extend(numbers);
    }

    /// Reads the hosts of `world` ranks. Each host number must be the number of an earlier rank's host, or the next free
    /// number.
    pub(super) fn decode(reader: &mut Reader<'_>, world: u32) -> Result<Self, ProtocolFault> {
        let mut next = 0;
        let mut of_rank = Vec::new();
        for _ in 0..world {
            let host = reader.u32()?;
            if host > next {
                return Err(ProtocolFault::Malformed);
            }
            next = next.max(host + 1);
            of_rank.push(host);
        }
        Ok(Self { of_rank })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_by_their_first_rank() {
        let host_map = HostMap::from_hosts(&[b"b", b"a", b"b", b"c"]);
        assert_eq!(host_map.all(), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(host_map.local_ranks(2), [0, 2]);
        assert_eq!((host_map.local_rank(0), host_map.local_rank(2)), (0, 1));
        assert_eq!(host_map.local_ranks(9), [] as [u32; 0]);
        assert_eq!(HostMap::one(2).all(), [vec![0, 1]]);
        assert_eq!(host_map.of_group(&[3, 2, 0]).all(), [vec![0], vec![1, 2]]);
    }

    #[test]
    fn a_map_can_be_decoded_and_malformed_bytes_are_refused() {
        let host_map = HostMap::from_hosts(&[b"b", b"a", b"b", b"c"]);
        let mut bytes = Vec::new();
        host_map.encode(&mut bytes);
        assert_eq!(HostMap::decode(&mut Reader(&bytes), 4), Ok(host_map));
        let malformed = Err(ProtocolFault::Malformed);
        assert_eq!(HostMap::decode(&mut Reader(&bytes), 5), malformed);
        let gap: Vec<u8> = [0u32, 2].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(HostMap::decode(&mut Reader(&gap), 2), malformed);
        let last = u32::MAX.to_le_bytes();
        assert_eq!(HostMap::decode(&mut Reader(&last), 1), malformed);
    }
}
