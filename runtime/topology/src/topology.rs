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
    /// NVIDIA GPUs in the order of their PCI bus ids. The index of a GPU in this crate is its index in this list. CUDA ordinals
    /// have the same order only with `CUDA_DEVICE_ORDER=PCI_BUS_ID` and all GPUs visible, so use [`Self::gpu_at`].
    pub gpus: Vec<Gpu>,
    /// Ports of InfiniBand, RoCE and EFA devices in the order of their PCI bus ids, including ports that are down.
    pub nics: Vec<Nic>,
    /// NUMA nodes with CPUs, by number.
    pub numa_nodes: Vec<NumaNode>,
    /// Notes, in sentences, about skipped content and its reasons.
    pub notes: Vec<String>,
}

impl Topology {
    /// Reads the tree at `sysfs`, usually `/sys`. Reading never fails: a machine without GPUs, NICs and NUMA nodes has an empty
    /// topology.
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

    /// Returns the index of the GPU at `bus_id`, the id that `cuDeviceGetPCIBusId` returns for a CUDA device.
    #[must_use]
    pub fn gpu_at(&self, bus_id: BusId) -> Option<usize> {
        self.gpus
            .iter()
            .position(|gpu| gpu.location.bus_id == bus_id)
    }

    /// Returns the distance of a NIC from a GPU.
    #[must_use]
    pub fn distance(&self, gpu: &Gpu, nic: &Nic) -> Distance {
        nic.location.as_ref().map_or(Distance::Unknown, |location| {
            Distance::between(&gpu.location, location, self.numa_nodes.len())
        })
    }

    /// Returns the physical cores near a NIC in ascending order, each as its first hardware thread. These are the cores that
    /// sysfs lists for the NIC's PCI function, or else the cores of its NUMA node, or else all cores. The caller's affinity
    /// mask may allow fewer cores.
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
