//! The hosts and GPUs of a job: hosts with as many ranks each, GPUs of one rank each, and with access to others of a host.

use crate::bootstrap::files::os;
use crate::bootstrap::{Nodes, ProtocolFault, printable};
use crate::driver;
use crate::error::{Error, Peer};
use cudarc::driver::CudaContext;
use mkernel_spec::abi::MAX_RANKS;

/// The same in all processes of a host, and different on every other. Processes of one machine count as of several hosts
/// where they have different network namespaces, in which they do not reach each other's sockets. Machines that were
/// started from one image of a running one have the same boot id.
pub(crate) fn host_id() -> Result<String, Error> {
    if let Some(id) = crate::env::host_id()? {
        return Ok(id);
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot = boot.map_err(os("reading the boot id"))?;
    let network = std::fs::read_link("/proc/self/ns/net");
    let network = network.map_err(os("reading the network namespace"))?;
    let names = rustix::system::uname();
    let name = names.nodename().to_string_lossy();
    Ok(format!("{} {name} {}", boot.trim(), network.display()))
}

/// The hosts of a job.
pub(crate) struct Hosts {
    pub nodes: Nodes,
    /// What each rank's host calls itself.
    names: Vec<String>,
}

impl Hosts {
    /// One host for all ranks, whose name says nothing.
    pub fn one(world: u32) -> Self {
        Self {
            nodes: Nodes::one(world),
            names: Vec::new(),
        }
    }

    /// What a rank is called where it is not known which hosts are concerned.
    pub fn name_of(&self, rank: u32) -> String {
        match self
            .names
            .get(rank as usize)
            .filter(|_| self.nodes.count() > 1)
        {
            Some(host) => format!("rank {rank} on {host}"),
            None => format!("rank {rank}"),
        }
    }

    /// More than one host is an error: for what has no way across.
    pub fn ensure_one(&self) -> Result<(), Error> {
        match self.nodes.count() {
            0 | 1 => Ok(()),
            _ => Err(Error::SeveralHosts {
                hosts: self.nodes.all(),
            }),
        }
    }
}

/// What a rank tells the others of where it is.
pub(crate) fn presentation(bus_id: &str) -> Vec<u8> {
    let host = rustix::system::uname();
    [bus_id.as_bytes(), b"\n", host.nodename().to_bytes()].concat()
}

/// Takes apart what all ranks told: their GPUs' bus ids, and the hosts.
pub(crate) fn hosts(
    nodes: &Nodes,
    told: &[Vec<u8>],
    step: &'static str,
) -> Result<(Vec<String>, Hosts), Error> {
    let mut bus_ids = Vec::with_capacity(told.len());
    let mut names = Vec::with_capacity(told.len());
    for (rank, told) in (0..).zip(told) {
        let Some(end) = told.iter().position(|byte| *byte == b'\n') else {
            return Err(Error::Protocol {
                peer: Peer::Rank(rank),
                step,
                source: ProtocolFault::Malformed,
            });
        };
        bus_ids.push(printable(&told[..end]));
        names.push(printable(&told[end..]));
    }
    let hosts = Hosts {
        nodes: nodes.clone(),
        names,
    };
    Ok((bus_ids, hosts))
}

/// That all hosts have as many ranks, and no more than kernels can have.
pub(crate) fn check_nodes(nodes: &Nodes) -> Result<(), Error> {
    let all = nodes.all();
    if all.iter().any(|ranks| ranks.len() != all[0].len()) {
        return Err(Error::UnequalHosts { hosts: all });
    }
    let local_world = all.first().map_or(0, Vec::len);
    if !(1..=MAX_RANKS).contains(&local_world) {
        return Err(Error::World(local_world));
    }
    Ok(())
}

/// That each rank of a host has a GPU of its own.
pub(crate) fn check_gpus(nodes: &Nodes, bus_ids: &[String]) -> Result<(), Error> {
    for ranks in nodes.all() {
        for (i, &second) in ranks.iter().enumerate() {
            let gpu = &bus_ids[second as usize];
            let same = ranks[..i]
                .iter()
                .find(|first| bus_ids[**first as usize] == *gpu);
            if let Some(&first) = same {
                return Err(Error::SameDevice {
                    first,
                    second,
                    bus_id: gpu.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Whether the GPU of `rank` can access those of its host's other ranks.
pub(crate) fn check_access(
    ctx: &CudaContext,
    nodes: &Nodes,
    rank: u32,
    bus_ids: &[String],
) -> Result<(), Error> {
    for peer in nodes
        .neighbours(rank)
        .into_iter()
        .filter(|peer| *peer != rank)
    {
        // A GPU that this process does not see shows when its memory is mapped.
        if driver::can_access_peer(ctx, &bus_ids[peer as usize])? == Some(false) {
            return Err(Error::NoPeerAccess { rank, peer });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_by_its_start_its_name_and_its_network() {
        let id = host_id().expect("Linux");
        let parts: Vec<&str> = id.split(' ').collect();
        assert_eq!(parts.len(), 3, "{id}");
        assert_eq!(parts[0].len(), 36, "a UUID: {id}");
        assert!(parts[2].starts_with("net:["), "{id}");
        assert!(id.len() <= crate::bootstrap::MAX_NAME_BYTES);
        assert_eq!(host_id().expect("Linux"), id);
    }

    fn ids(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn nodes(hosts: &[&str]) -> Nodes {
        let hosts: Vec<&[u8]> = hosts.iter().map(|host| host.as_bytes()).collect();
        Nodes::from_hosts(&hosts)
    }

    #[test]
    fn neighbours_share_no_gpu() {
        let two = nodes(&["a", "a"]);
        check_gpus(&two, &ids(&["0000:18:00.0", "0000:2A:00.0"])).expect("two GPUs");
        let error = check_gpus(&nodes(&["a", "b", "b"]), &ids(&["2", "2", "2"]));
        let error = error.expect_err("one GPU twice on the second host");
        assert!(
            matches!(
                &error,
                Error::SameDevice {
                    first: 1,
                    second: 2,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn hosts_have_as_many_ranks_and_a_number_that_kernels_have() {
        let check = |hosts: &[&str]| check_nodes(&nodes(hosts));
        check(&["a", "a"]).expect("one host");
        check(&["a", "b", "c"]).expect("three hosts of a rank each");
        assert!(matches!(check(&["a"; 9]), Err(Error::World(9))));
        let error = check(&["a", "b", "a"]).expect_err("two hosts, one with fewer ranks");
        assert!(matches!(error, Error::UnequalHosts { .. }), "{error}");
    }

    #[test]
    fn what_has_no_way_across_names_the_hosts() {
        Hosts::one(2).ensure_one().expect("one host");
        let told = [presentation("1"), b"1\nfar\x1b[31m".to_vec()];
        let (bus_ids, hosts) = hosts(&nodes(&["a", "b"]), &told, "test").expect("two hosts");
        assert_eq!(bus_ids, ["1", "1"]);
        assert_eq!(hosts.name_of(1), "rank 1 on far[31m");
        assert_eq!(Hosts::one(2).name_of(1), "rank 1");
        let error = hosts.ensure_one().expect_err("two hosts").to_string();
        assert!(error.contains("rank 0 | rank 1"), "{error}");
    }

    #[test]
    fn who_says_nothing_of_its_host_is_named() {
        let told = [presentation("1"), b"1".to_vec()];
        let error = hosts(&nodes(&["a", "b"]), &told, "test")
            .err()
            .expect("malformed");
        let is_named = matches!(
            error,
            Error::Protocol {
                peer: Peer::Rank(1),
                ..
            }
        );
        assert!(is_named, "{error}");
    }
}
