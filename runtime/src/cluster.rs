//! The hosts and GPUs of a job. All hosts must have the same number of ranks, each rank needs a GPU of its own or
//! a part of one, and the GPUs of a host must be able to access each other.

use crate::bootstrap::files::os;
use crate::bootstrap::{HostMap, printable};
use crate::driver;
use crate::error::{ClusterError, DeviceError, Error, Peer, ProtocolFault};
use cudarc::driver::CudaContext;
use mkernel_spec::Device;
use mkernel_spec::abi::MAX_RANKS;
use mkernel_topology::GpuLink;
use serde::{Deserialize, Serialize};

/// Returns the id of this host, which all processes of the host share and no other host has. Processes of one machine count as
/// several hosts if they have different network namespaces, since they then cannot connect to each other's sockets. The boot id
/// alone is not enough: machines that were started from one image of a running machine have equal boot ids.
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

/// The ranks of a communicator: their hosts, and their ranks in the job.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub hosts: HostMap,
    /// The name of each rank's host.
    names: Vec<String>,
    /// The rank that each rank has in the job.
    pub job_ranks: Vec<u32>,
    /// The number and the colour of each split that led from all ranks of the job to this group; empty if the group has all
    /// ranks of the job.
    pub splits: Vec<u32>,
    /// The number of times that the communicator was rebuilt.
    pub generation: u32,
}

impl Cluster {
    /// Returns one host for all ranks, without a name.
    pub fn one(world: u32) -> Self {
        Self {
            hosts: HostMap::one(world),
            names: Vec::new(),
            job_ranks: (0..world).collect(),
            splits: Vec::new(),
            generation: 0,
        }
    }

    /// Returns the cluster of a group of these ranks, in this order, that split `number` has made for `color`.
    pub fn group(&self, members: &[u32], (number, color): (u32, u32)) -> Self {
        let splits = [&self.splits[..], &[number, color]].concat();
        self.of_ranks(members, (splits, self.generation))
    }

    /// Returns the cluster of these ranks, in this order, which are left of this cluster.
    pub fn survivors(&self, ranks: &[u32]) -> Self {
        let next = self.generation + 1;
        // No split has this number, so operators of other generations have other names.
        self.of_ranks(ranks, (vec![u32::MAX, next], next))
    }

    /// Returns whether [`Communicator::split`](crate::Communicator::split) has made this group.
    pub fn is_split(&self) -> bool {
        self.splits.len() > 2 * usize::from(self.generation > 0)
    }

    fn of_ranks(&self, members: &[u32], (splits, generation): (Vec<u32>, u32)) -> Self {
        let ranks = members.iter().map(|rank| *rank as usize);
        let names = ranks.clone().filter_map(|rank| self.names.get(rank));
        let job_ranks = ranks.filter_map(|rank| self.job_ranks.get(rank));
        Self {
            hosts: self.hosts.of_group(members),
            names: names.cloned().collect(),
            job_ranks: job_ranks.copied().collect(),
            splits,
            generation,
        }
    }

    /// Returns a name with the ranks in the job, as in `group [1, 3]`, if this is a group. A long list is shortened.
    pub fn group_name(&self) -> Option<String> {
        let name = match &self.job_ranks[..] {
            [first, .., last] if self.job_ranks.len() > 8 => {
                format!("group [{first}, ..., {last}] of {}", self.job_ranks.len())
            }
            all => format!("group {all:?}"),
        };
        (!self.splits.is_empty()).then_some(name)
    }

    /// Returns a name for a rank in messages. It includes the rank in the job if this is a group, and the host if there are
    /// several.
    pub fn name_of(&self, rank: u32) -> String {
        let mut name = format!("rank {rank}");
        if let (Some(job_rank), [_, ..]) = (self.job_ranks.get(rank as usize), &self.splits[..]) {
            name += &format!(" (rank {job_rank} of the job)");
        }
        match self.names.get(rank as usize) {
            Some(host) if self.hosts.count() > 1 => format!("{name} on {host}"),
            _ => name,
        }
    }

    /// Returns an error if there is more than one host.
    pub fn ensure_one(&self) -> Result<(), Error> {
        match self.hosts.count() {
            0 | 1 => Ok(()),
            _ => Err(Error::Cluster(ClusterError::SeveralHosts {
                hosts: self.hosts.all(),
            })),
        }
    }
}

/// The properties of a rank's GPU and host, which every rank sends to the other ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RankInfo {
    /// The PCI bus id of the GPU.
    bus_id: String,
    /// The name of the host.
    host: String,
    /// The properties of the GPU.
    device: Device,
}

impl RankInfo {
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

    /// Reads the message of another rank. Returns `None` if it is malformed or if the properties are impossible.
    /// Control characters are removed from the texts.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut read: Self = serde_json::from_slice(bytes).ok()?;
        for text in [&mut read.bus_id, &mut read.host, &mut read.device.name] {
            *text = printable(text.as_bytes());
        }
        read.device.bad_figures().is_empty().then_some(read)
    }
}

/// The GPUs of all ranks, and their hosts.
#[derive(Debug)]
pub(crate) struct RankTable {
    pub bus_ids: Vec<String>,
    pub cluster: Cluster,
    /// The properties of the slowest GPU, which all ranks use to plan.
    pub device: Device,
}

/// Combines the [`RankInfo`]s of all ranks.
pub(crate) fn rank_table(
    host_map: &HostMap,
    rank_infos: &[Vec<u8>],
    step: &'static str,
) -> Result<RankTable, Error> {
    let (mut bus_ids, mut names, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for (rank, bytes) in (0..).zip(rank_infos) {
        let read = RankInfo::read(bytes).ok_or(Error::Protocol {
            peer: Peer::Rank(rank),
            step,
            source: ProtocolFault::Malformed,
        })?;
        bus_ids.push(read.bus_id);
        names.push(read.host);
        devices.push(read.device);
    }
    let cluster = Cluster {
        hosts: host_map.clone(),
        names,
        ..Cluster::one(host_map.world())
    };
    let device = Device::slowest(&devices).ok_or(Error::Cluster(ClusterError::World(0)))?;
    Ok(RankTable {
        bus_ids,
        cluster,
        device,
    })
}

/// Checks that all hosts have an equal number of ranks, and not more than kernels support.
pub(crate) fn check_hosts(host_map: &HostMap) -> Result<(), Error> {
    let all = host_map.all();
    if all.iter().any(|ranks| ranks.len() != all[0].len()) {
        return Err(Error::Cluster(ClusterError::UnequalHosts { hosts: all }));
    }
    let local_world = all.first().map_or(0, Vec::len);
    if !(1..=MAX_RANKS).contains(&local_world) {
        return Err(Error::Cluster(ClusterError::World(local_world)));
    }
    Ok(())
}

/// Checks that each rank of a host has a GPU of its own.
pub(crate) fn check_gpus(host_map: &HostMap, bus_ids: &[String]) -> Result<(), Error> {
    for ranks in host_map.all() {
        for (i, &second) in ranks.iter().enumerate() {
            let gpu = &bus_ids[second as usize];
            let same = ranks[..i]
                .iter()
                .find(|first| bus_ids[**first as usize] == *gpu);
            if let Some(&first) = same {
                return Err(Error::Device(DeviceError::SameDevice {
                    first,
                    second,
                    bus_id: gpu.clone(),
                }));
            }
        }
    }
    Ok(())
}

/// Checks that the GPU of `rank` can access the GPUs of its host's other ranks.
pub(crate) fn check_access(
    ctx: &CudaContext,
    host_map: &HostMap,
    rank: u32,
    bus_ids: &[String],
) -> Result<(), Error> {
    for peer in host_map
        .local_ranks(rank)
        .into_iter()
        // Ranks that share a GPU share its memory.
        .filter(|peer| bus_ids[*peer as usize] != bus_ids[rank as usize])
    {
        // If this process does not see the other GPU, an error is detected only when the memory of that GPU is mapped.
        if let Some(link) = driver::link_to(ctx, &bus_ids[peer as usize])? {
            check_link(rank, peer, link)?;
        }
    }
    Ok(())
}

/// Checks that kernels of `rank` can use the memory of `peer`'s GPU by loads, stores and atomic instructions.
fn check_link(rank: u32, peer: u32, link: GpuLink) -> Result<(), Error> {
    match link {
        GpuLink::NvLink => Ok(()),
        GpuLink::Pcie => Err(Error::Device(DeviceError::NoNvLink { rank, peer })),
        GpuLink::None => Err(Error::Device(DeviceError::NoPeerAccess { rank, peer })),
    }
}

#[cfg(test)]
mod tests;
