//! [`Communicator::split`]: groups of the ranks of a communicator.

use crate::bootstrap::HostMap;
use crate::communicator::Communicator;
use crate::driver::Uncaptured;
use crate::error::{ClusterError, Error, Peer, ProtocolFault};
use mkernel_spec::WORLDS;
use std::collections::BTreeMap;

const STEP: &str = "split";

/// The arguments of [`Communicator::split`] on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    color: Option<u32>,
    key: i32,
}

impl Request {
    fn to_bytes(self) -> Vec<u8> {
        let color = self
            .color
            .map_or_else(Vec::new, |color| color.to_le_bytes().to_vec());
        [&self.key.to_le_bytes()[..], &color].concat()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (key, color) = bytes.split_first_chunk()?;
        let color = match color {
            [] => None,
            color => Some(u32::from_le_bytes(color.try_into().ok()?)),
        };
        let key = i32::from_le_bytes(*key);
        Some(Self { color, key })
    }
}

/// The ranks of each group in the order of the group's ranks, by colour.
type Groups = BTreeMap<u32, Vec<u32>>;

/// Makes the groups of ranks from the requests of all ranks.
fn groups(requests: &[Vec<u8>]) -> Result<Groups, Error> {
    let mut keyed: BTreeMap<u32, Vec<(i32, u32)>> = BTreeMap::new();
    for (rank, bytes) in (0..).zip(requests) {
        let request = Request::read(bytes).ok_or(Error::Protocol {
            peer: Peer::Rank(rank),
            step: STEP,
            source: ProtocolFault::Malformed,
        })?;
        if let Some(color) = request.color {
            keyed.entry(color).or_default().push((request.key, rank));
        }
    }
    let sorted = keyed.into_iter().map(|(color, mut members)| {
        members.sort_unstable();
        (color, members.into_iter().map(|(_, rank)| rank).collect())
    });
    Ok(sorted.collect())
}

/// Checks that kernels support the group. `hosts` are the hosts of the communicator that is split.
fn check(color: u32, members: &[u32], hosts: &HostMap) -> Result<(), ClusterError> {
    let of_hosts = hosts.of_group(members).all();
    match &of_hosts[..] {
        [all] if WORLDS.contains(&(all.len() as u32)) => Ok(()),
        [_] => Err(ClusterError::GroupSize {
            color,
            ranks: members.to_vec(),
        }),
        [first, others @ ..] => {
            let are_equal = others.iter().all(|ranks| ranks.len() == first.len());
            let are_in_order = of_hosts
                .iter()
                .flatten()
                .copied()
                .eq(0..members.len() as u32);
            let in_parent =
                |ranks: &Vec<u32>| ranks.iter().map(|rank| members[*rank as usize]).collect();
            match are_equal && are_in_order {
                true => Ok(()),
                false => Err(ClusterError::GroupHosts {
                    color,
                    hosts: of_hosts.iter().map(in_parent).collect(),
                }),
            }
        }
        [] => Ok(()),
    }
}

impl Communicator {
    /// Divides the ranks into groups, each with a communicator of its own: the ranks that pass one `color` are a group. The ranks
    /// of a group are numbered by `key`, and ranks with equal keys by their rank in this communicator. A rank that passes `None`
    /// is in no group, and gets `None`. This is a collective call of all ranks, as `MPI_Comm_split` and `ncclCommSplit` are.
    ///
    /// Here, 4 ranks are divided into two tensor-parallel groups, and into two data-parallel groups across the
    /// tensor-parallel groups:
    ///
    /// ```
    /// use mkernel::half::bf16;
    /// use mkernel::{Communicator, Error, Simulation, fused_kernel};
    ///
    /// #[fused_kernel(op = all_reduce, m = 1, n = 64)]
    /// struct Sum;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let all = Communicator::simulated(&Simulation { ranks: 4, ..Simulation::default() })?;
    /// mkernel::run(all, |ranks| {
    ///     let (row, column) = (ranks.rank() / 2, ranks.rank() % 2);
    ///     let tensor_parallel = ranks.split(Some(row), 0)?.expect("a group");
    ///     let data_parallel = ranks.split(Some(column), 0)?.expect("a group");
    ///     assert_eq!((tensor_parallel.rank(), data_parallel.rank()), (column, row));
    ///
    ///     let (rows, columns) = (Sum::prepare(&tensor_parallel)?, Sum::prepare(&data_parallel)?);
    ///     let stream = ranks.default_stream();
    ///     let own = vec![bf16::from_f32(ranks.rank() as f32); 64];
    ///     let x = stream.clone_htod(&own).expect("memory");
    ///     let mut y = stream.alloc_zeros::<bf16>(64).expect("memory");
    ///     let mut z = stream.alloc_zeros::<bf16>(64).expect("memory");
    ///     rows.launch(&stream, SumOperands { x: &x, y: &mut y })?;
    ///     columns.launch(&stream, SumOperands { x: &y, y: &mut z })?;
    ///     data_parallel.synchronize(&stream)?;
    ///     tensor_parallel.check()?;
    ///     let z = stream.clone_dtoh(&z).expect("a copy");
    ///     assert!(z.iter().all(|sum| sum.to_f32() == 6.0));
    ///     Ok::<_, Error>(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A group has the GPU of its rank in common with this communicator: the context, the default stream, the order of launches
    /// and the simulated job. So a tensor that an operator of one group has written can be an operand of another group. The links
    /// between the GPUs are not searched again, and timeouts and the transport are those of this communicator at this time. A
    /// group has its own connections, symmetric memory, operators and [`Stats`](crate::Stats). A tensor of [`alloc`](Self::alloc)
    /// is in the symmetric memory of that communicator only. For operators of other communicators, it is memory like any other.
    ///
    /// The group and this communicator can be used in turns, and dropped in any order. Every rank must launch the operators of all its
    /// communicators in an order that agrees with the orders of the other ranks, also on different streams: otherwise ranks wait for
    /// each other in a circle until the deadline. Replays of graphs of several communicators are ordered by the program alone.
    ///
    /// Errors, [`stats`](Self::stats) and names of ranks use the ranks of the group. The operators of a group have the group's
    /// [ranks in the job](Self::job_ranks) in their names. A failed call or [`abort`](Self::abort) ends one communicator only. If a
    /// rank is lost, every communicator with this rank ends with [`Error::RankLost`]. Groups without the rank end too, with
    /// [`Error::Aborted`] and this cause, as long as this communicator exists.
    ///
    /// # Errors
    /// [`Error::Cluster`] on all ranks if a group on one host has another number of ranks than 1, 2, 4 or 8, or if a group on
    /// several hosts has different numbers of ranks on them or is not numbered host by host. [`Error::RanksMissing`] with the
    /// ranks that do not make this call, and other failures of a collective step.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>, Error> {
        // Another thread may be capturing a stream of its own, which must not be affected.
        let _uncaptured = Uncaptured::new();
        let (shared, timeout) = (self.shared(), self.host_timeout());
        let mut ranks = shared.ranks();
        let request = Request { color, key };
        let gpu = shared.ensure_usable().and_then(|()| shared.gpu());
        let gpu = gpu.map(|gpu| (gpu, request.to_bytes()));
        let (gpu, requests) = ranks.agree(STEP, gpu, timeout)?;
        let number = shared.next_split();
        let groups = groups(&requests)?;
        // All ranks compute equal groups, so no rank waits for another rank after an error.
        for (color, members) in &groups {
            check(*color, members, &shared.cluster.hosts).map_err(Error::Cluster)?;
        }
        let own = color.and_then(|color| Some((color, groups.get(&color)?)));
        let members = own.map_or(&[][..], |(_, members)| members);
        let group = ranks.connect_group(members, timeout)?;
        Ok(group.zip(own).map(|(group, (color, members))| {
            let cluster = shared.cluster.group(members, (number, color));
            tracing::debug!(rank = group.rank(), ranks = ?cluster.job_ranks, "a group of ranks was connected");
            Self::of_shared(shared.group(gpu, group, cluster))
        }))
    }

    /// Returns the rank that each rank of this communicator has in the job. Without [`split`](Self::split), these are all ranks
    /// in order.
    #[must_use]
    pub fn job_ranks(&self) -> &[u32] {
        &self.shared().cluster.job_ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(color: impl Into<Option<u32>>, key: i32) -> Request {
        let color = color.into();
        Request { color, key }
    }

    fn grouped(requests: &[Request]) -> Vec<(u32, Vec<u32>)> {
        let requests: Vec<_> = requests.iter().map(|request| request.to_bytes()).collect();
        groups(&requests)
            .expect("well-formed")
            .into_iter()
            .collect()
    }

    #[test]
    fn ranks_of_a_colour_are_ordered_by_key_and_then_by_rank() {
        let all = [
            request(7, 0),
            request(0, -1),
            request(7, 0),
            request(None, 3),
            request(7, i32::MIN),
        ];
        assert_eq!(grouped(&all), [(0, vec![1]), (7, vec![4, 0, 2])]);
        assert_eq!(grouped(&[request(None, 0)]), []);
        let error =
            groups(&[request(1, 1).to_bytes(), vec![1, 2, 3, 4, 5]]).expect_err("malformed");
        let is_named = matches!(
            error,
            Error::Protocol {
                peer: Peer::Rank(1),
                ..
            }
        );
        assert!(is_named, "{error}");
    }

    #[test]
    fn groups_that_no_kernel_supports_are_refused() {
        let one = HostMap::one(8);
        for count in [1, 2, 4, 8] {
            check(0, &Vec::from_iter(0..count), &one).expect("a world");
        }
        let error = check(5, &[6, 0, 3], &one)
            .expect_err("three ranks")
            .to_string();
        assert!(
            error.contains("colour 5 has 3 ranks on one host (ranks 6, 0, 3)"),
            "{error}"
        );
        let two = HostMap::from_hosts(&["a", "a", "a", "b", "b", "b"]);
        for members in [&[0, 1, 2][..], &[0, 1, 4], &[0, 3, 1, 4], &[0, 1, 2, 3, 4]] {
            let error = check(1, members, &two).expect_err("no world");
            assert!(error.to_string().contains("colour 1"), "{error}");
        }
        for members in [&[4, 3, 1, 0][..], &[5, 2], &[0, 1, 2, 3, 4, 5], &[3, 4]] {
            check(1, members, &two).expect("a world");
        }
        let error = check(1, &[0, 4, 1], &two).expect_err("not equal");
        let hosts = vec![vec![0, 1], vec![4]];
        assert_eq!(error, ClusterError::GroupHosts { color: 1, hosts });
    }
}
