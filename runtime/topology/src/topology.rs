//! [`Topology`]: the GPUs, NICs and NUMA nodes of a host, as sysfs shows them.

use crate::distance::Distance;
use crate::gpu::{self, Gpu};
use crate::nic::{self, Nic};
use crate::numa::{self, NumaNode};
use crate::pci::BusId;
use crate::sysfs::Sysfs;
use serde::Serialize;
use std::path::Path;

/// The GPUs, NICs and NUMA nodes of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// NVIDIA GPUs in the order of their PCI bus ids; a GPU's index in this crate is its place here. CUDA's ordinals
    /// are in the same order only with `CUDA_DEVICE_ORDER=PCI_BUS_ID` and all GPUs visible: go by [`Self::gpu_at`].
    pub gpus: Vec<Gpu>,
    /// Ports of InfiniBand, RoCE and EFA devices, also those that are down, in the order of their PCI bus ids.
    pub nics: Vec<Nic>,
    /// NUMA nodes with CPUs, by number.
    pub numa_nodes: Vec<NumaNode>,
    /// What was skipped or left out, and why: sentences for people.
    pub notes: Vec<String>,
}

impl Topology {
    /// Reads the tree at `sysfs`, usually `/sys`. Never fails: a machine with nothing of all that has an empty topology.
    #[must_use]
    pub fn read(sysfs: &Path) -> Self {
        let mut sysfs = Sysfs::new(sysfs);
        let numa_nodes = numa::read(&mut sysfs);
        let gpus = gpu::read(&mut sysfs);
        let nics = nic::read(&mut sysfs);
        Self {
            gpus,
            nics,
            numa_nodes,
            notes: sysfs.into_notes(),
        }
    }

    /// The index of the GPU at `bus_id`: what `cuDeviceGetPCIBusId` says of a CUDA device.
    #[must_use]
    pub fn gpu_at(&self, bus_id: BusId) -> Option<usize> {
        self.gpus
            .iter()
            .position(|gpu| gpu.location.bus_id == bus_id)
    }

    /// How far a NIC is from a GPU.
    #[must_use]
    pub fn distance(&self, gpu: &Gpu, nic: &Nic) -> Distance {
        nic.location.as_ref().map_or(Distance::Unknown, |location| {
            Distance::between(&gpu.location, location, self.numa_nodes.len())
        })
    }

    /// Physical cores near a NIC (the first hardware thread of each), ascending: those that sysfs names for its PCI
    /// function, else those of its NUMA node, else all. The caller's own affinity mask may allow fewer.
    #[must_use]
    pub fn cores_near(&self, nic: &Nic) -> Vec<u32> {
        let node = nic
            .location
            .as_ref()
            .and_then(|location| location.numa_node);
        let of_node = self
            .numa_nodes
            .iter()
            .find(|known| Some(known.number) == node);
        let firsts = |node: &NumaNode| node.first_threads.clone();
        let all = || self.numa_nodes.iter().flat_map(firsts).collect();
        let mut cores: Vec<u32> = of_node.map_or_else(all, firsts);
        if !nic.local_cpus.is_empty() {
            let near: Vec<u32> = (self.numa_nodes.iter().flat_map(firsts))
                .filter(|cpu| nic.local_cpus.contains(cpu))
                .collect();
            if !near.is_empty() {
                cores = near;
            }
        }
        cores.sort_unstable();
        cores
    }
}
