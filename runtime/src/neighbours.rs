//! The hosts and GPUs of a job: hosts with as many ranks each, GPUs of one rank each, and with access to others of a host.

use crate::bootstrap::files::os;
use crate::bootstrap::{Nodes, ProtocolFault, printable};
use crate::driver;
use crate::error::{Error, Peer};
use cudarc::driver::CudaContext;
use mkernel_spec::Device;
use mkernel_spec::abi::MAX_RANKS;
use mkernel_topology::GpuLink;
use serde::{Deserialize, Serialize};

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
#[derive(Debug)]
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

/// What every rank sends to the others about its GPU and its host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Presentation {
    /// Its GPU's PCI bus id.
    bus_id: String,
    /// What its host calls itself.
    host: String,
    /// The figures of its GPU.
    device: Device,
}

impl Presentation {
    pub fn new(bus_id: String, device: Device) -> Self {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        Self {
            bus_id,
            host,
            device,
        }
    }

    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|error| os("writing the figures of the GPU")(error.into()))
    }

    /// What another rank sent. Its figures are those of a possible GPU, and its texts can be printed.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut read: Self = serde_json::from_slice(bytes).ok()?;
        for text in [&mut read.bus_id, &mut read.host, &mut read.device.name] {
            *text = printable(text.as_bytes());
        }
        read.device.bad_figures().is_empty().then_some(read)
    }
}

/// The GPUs of all ranks, and the hosts that these are on.
#[derive(Debug)]
pub(crate) struct Ranks {
    pub bus_ids: Vec<String>,
    pub hosts: Hosts,
    /// The figures that every rank plans with.
    pub device: Device,
}

/// What follows from the [`Presentation`]s of all ranks.
pub(crate) fn ranks(
    nodes: &Nodes,
    presentations: &[Vec<u8>],
    step: &'static str,
) -> Result<Ranks, Error> {
    let (mut bus_ids, mut names, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for (rank, bytes) in (0..).zip(presentations) {
        let read = Presentation::read(bytes).ok_or(Error::Protocol {
            peer: Peer::Rank(rank),
            step,
            source: ProtocolFault::Malformed,
        })?;
        bus_ids.push(read.bus_id);
        names.push(read.host);
        devices.push(read.device);
    }
    let hosts = Hosts {
        nodes: nodes.clone(),
        names,
    };
    let device = Device::slowest(&devices).ok_or(Error::World(0))?;
    Ok(Ranks {
        bus_ids,
        hosts,
        device,
    })
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
        // Whether a GPU can be accessed that this process does not see shows when its memory is mapped.
        if let Some(link) = driver::link_to(ctx, &bus_ids[peer as usize])? {
            check_link(rank, peer, link)?;
        }
    }
    Ok(())
}

/// Whether kernels of `rank` can use the memory of `peer`'s GPU as they do: by loads, stores and atomic instructions.
fn check_link(rank: u32, peer: u32, link: GpuLink) -> Result<(), Error> {
    match link {
        GpuLink::NvLink => Ok(()),
        GpuLink::Pcie => Err(Error::NoNvLink { rank, peer }),
        GpuLink::None => Err(Error::NoPeerAccess { rank, peer }),
    }
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

    #[test]
    fn gpus_without_nvlink_are_refused() {
        check_link(0, 1, GpuLink::NvLink).expect("NVLink");
        let error = check_link(2, 3, GpuLink::Pcie).expect_err("PCIe alone");
        assert!(error.to_string().contains("ranks 2 and 3"), "{error}");
        let error = check_link(2, 3, GpuLink::None).expect_err("no access");
        assert!(
            matches!(error, Error::NoPeerAccess { rank: 2, peer: 3 }),
            "{error}"
        );
    }

    fn presentation(bus_id: &str) -> Presentation {
        Presentation::new(bus_id.to_owned(), Device::h200())
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
        let far = Presentation {
            host: "far\x1b[31m".into(),
            ..presentation("1")
        };
        let sent = [presentation("1"), far].map(|sent| sent.to_bytes().expect("text"));
        let found = ranks(&nodes(&["a", "b"]), &sent, "test").expect("two hosts");
        assert_eq!(found.bus_ids, ["1", "1"]);
        assert_eq!(found.hosts.name_of(1), "rank 1 on far[31m");
        assert_eq!(Hosts::one(2).name_of(1), "rank 1");
        let error = found.hosts.ensure_one().expect_err("two hosts").to_string();
        assert!(error.contains("rank 0 | rank 1"), "{error}");
    }

    #[test]
    fn all_ranks_plan_for_the_slowest_gpu() {
        let mut slow = presentation("2");
        slow.device.link_gb_s = 100.0;
        let sent = [presentation("1"), slow].map(|sent| sent.to_bytes().expect("text"));
        let found = ranks(&nodes(&["a", "a"]), &sent, "test").expect("two GPUs");
        assert_eq!(found.device.link_gb_s, 100.0);
    }

    #[test]
    fn a_malformed_presentation_names_its_rank() {
        let mut impossible = presentation("1");
        impossible.device.link_gb_s = -1.0;
        let impossible = impossible.to_bytes().expect("text");
        for malformed in [b"1".to_vec(), impossible] {
            let sent = [presentation("1").to_bytes().expect("text"), malformed];
            let error = ranks(&nodes(&["a", "b"]), &sent, "test").expect_err("malformed");
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
}
