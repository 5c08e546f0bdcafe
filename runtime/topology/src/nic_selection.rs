//! [`NicSelection`]: the NICs of each GPU.
//!
//! The candidates of a GPU are its nearest NICs, and of equally near NICs the fastest. Each round matches as many GPUs as
//! possible to candidates that no GPU uses (augmenting paths: H. W. Kuhn, "The Hungarian method for the assignment problem",
//! 1955, in its form for unweighted graphs). Therefore no two GPUs share a NIC while an equally near NIC is free. A GPU without
//! a NIC after the first round shares the candidate with the fewest users. Further rounds add rails.

use crate::distance::Distance;
use crate::nic::{Nic, NicKind};
use crate::nic_config::{NicConfig, NicConfigError};
use crate::topology::Topology;
use serde::Serialize;

/// The selection for a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NicSelection {
    /// The kind of all selected NICs. The NICs of peers on other nodes must be of this kind too. `None` if no NIC is selected.
    #[serde(rename = "link")]
    pub kind: Option<NicKind>,
    /// The NICs of each GPU.
    pub gpus: Vec<GpuNics>,
    /// The NICs that were left out and the reasons, in sentences.
    pub notes: Vec<String>,
}

/// The selection for a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuNics {
    /// The index in [`Topology::gpus`].
    pub gpu: usize,
    /// The NICs that carry the GPU's traffic. Empty if the GPU has no NIC.
    pub rails: Vec<Rail>,
    /// Physical cores for the GPU's proxy thread: the cores near its first rail, divided evenly among the GPUs near these
    /// cores.
    pub cores: Vec<u32>,
}

impl GpuNics {
    /// Returns the total rate of the GPU's NICs in one direction in GB/s. The rate of a shared NIC is divided evenly among the
    /// GPUs that use it. Returns `None` if the GPU has no NIC or if the tree does not state the rate of one of its NICs.
    #[must_use]
    pub fn gb_per_s(&self, topology: &Topology) -> Option<f64> {
        let of_rail = |rail: &Rail| {
            let mbps = topology.nics.get(rail.nic)?.rate_mbps?;
            Some(mbps as f64 / 8000.0 / (1 + rail.shared_with.len()) as f64)
        };
        let rates: Option<Vec<f64>> = self.rails.iter().map(of_rail).collect();
        rates
            .filter(|rates| !rates.is_empty())
            .map(|rates| rates.iter().sum())
    }
}

/// A NIC of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rail {
    /// The index in [`Topology::nics`].
    pub nic: usize,
    /// The distance of the NIC from the GPU.
    pub distance: Distance,
    /// Whether the configuration assigns the NIC to this GPU.
    pub is_configured: bool,
    /// The other GPUs that use the NIC.
    pub shared_with: Vec<usize>,
}

impl Topology {
    /// Selects the NICs of each GPU. `config` has the syntax of [`NicConfig`]. An empty `config` means the automatic selection.
    ///
    /// # Errors
    ///
    /// Returns all errors of `config`.
    pub fn select_nics(&self, config: &str) -> Result<NicSelection, NicConfigError> {
        let config = NicConfig::parse(config, self)?;
        let mut notes = Vec::new();
        let kind = self.nic_kind(&config, &mut notes);
        let usable: Vec<usize> = (config.allowed.iter().copied())
            .filter(|nic| self.nics[*nic].is_up && Some(self.nics[*nic].kind) == kind)
            .collect();
        let rails = Matching::new(self, &config, &usable).run();
        let gpus = (0..self.gpus.len())
            .map(|gpu| self.gpu_nics(gpu, &rails, &config))
            .collect();
        let mut selection = NicSelection { kind, gpus, notes };
        divide_cores(&mut selection.gpus);
        Ok(selection)
    }

    /// Returns the kind of NIC to use: the kind of the NICs that the configuration assigns to GPUs, or else the kind with the
    /// highest total rate.
    fn nic_kind(&self, config: &NicConfig, notes: &mut Vec<String>) -> Option<NicKind> {
        let fixed = config.fixed.values().flatten().next();
        if let Some(nic) = fixed {
            return Some(self.nics[*nic].kind);
        }
        let up: Vec<&Nic> = (config.allowed.iter().map(|nic| &self.nics[*nic]))
            .filter(|nic| nic.is_up)
            .collect();
        let total = |kind: NicKind| -> u64 {
            (up.iter().filter(|nic| nic.kind == kind))
                .map(|nic| nic.rate_mbps.unwrap_or(0))
                .fold(0, u64::saturating_add)
        };
        let kinds = [NicKind::Efa, NicKind::InfiniBand, NicKind::RoCE];
        let present = kinds
            .into_iter()
            .filter(|kind| up.iter().any(|nic| nic.kind == *kind));
        // If several kinds have equal rates, the first kind is best. `max_by_key` returns the last maximum, so the order is
        // reversed.
        let best = present.rev().max_by_key(|kind| total(*kind))?;
        for nic in up.iter().filter(|nic| nic.kind != best) {
            notes.push(format!(
                "{} is left out: it is {}, and {best} has the higher total rate",
                nic.name, nic.kind
            ));
        }
        Some(best)
    }

    /// Returns the selection for one GPU.
    fn gpu_nics(&self, gpu: usize, rails: &[Vec<usize>], config: &NicConfig) -> GpuNics {
        let rail = |nic: usize| Rail {
            nic,
            distance: self.distance(&self.gpus[gpu], &self.nics[nic]),
            is_configured: config.fixed.contains_key(&gpu),
            shared_with: (0..rails.len())
                .filter(|other| *other != gpu && rails[*other].contains(&nic))
                .collect(),
        };
        let first = rails[gpu].first();
        GpuNics {
            gpu,
            rails: rails[gpu].iter().copied().map(rail).collect(),
            cores: first.map_or_else(Vec::new, |nic| self.cores_near(&self.nics[*nic])),
        }
    }
}

/// The state of the matching between GPUs and candidates.
struct Matching {
    /// The candidate NICs of each GPU.
    candidates: Vec<Vec<usize>>,
    /// The NICs assigned to each GPU.
    rails: Vec<Vec<usize>>,
    /// The number of GPUs that use each NIC.
    users: Vec<usize>,
}

impl Matching {
    fn new(topology: &Topology, config: &NicConfig, usable: &[usize]) -> Self {
        let gpus = topology.gpus.len();
        let mut matching = Self {
            candidates: vec![Vec::new(); gpus],
            rails: vec![Vec::new(); gpus],
            users: vec![0; topology.nics.len()],
        };
        for gpu in 0..gpus {
            match config.fixed.get(&gpu) {
                Some(nics) => nics.iter().for_each(|nic| matching.assign(gpu, *nic)),
                None => matching.candidates[gpu] = candidates(topology, gpu, usable),
            }
        }
        matching
    }

    fn assign(&mut self, gpu: usize, nic: usize) {
        self.rails[gpu].push(nic);
        self.users[nic] += 1;
    }

    /// Runs all rounds, and returns the NICs of each GPU.
    fn run(mut self) -> Vec<Vec<usize>> {
        self.round();
        for gpu in 0..self.rails.len() {
            if self.rails[gpu].is_empty() {
                let least = self.candidates[gpu].iter().copied();
                if let Some(nic) = least.min_by_key(|nic| self.users[*nic]) {
                    self.assign(gpu, nic);
                }
            }
        }
        while self.round() {}
        self.rails
    }

    /// Assigns one more NIC that no GPU uses to as many GPUs as possible. Returns whether any GPU got a NIC.
    fn round(&mut self) -> bool {
        let mut owner: Vec<Option<usize>> = vec![None; self.users.len()];
        for gpu in 0..self.candidates.len() {
            let mut tried = vec![false; owner.len()];
            self.augment(gpu, &mut owner, &mut tried);
        }
        for (nic, gpu) in owner.iter().enumerate() {
            if let Some(gpu) = gpu {
                self.assign(*gpu, nic);
            }
        }
        owner.iter().any(Option::is_some)
    }

    /// Finds a free NIC for `gpu`. If necessary, other GPUs of this round are moved to NICs that suit them equally well.
    fn augment(&self, gpu: usize, owner: &mut [Option<usize>], tried: &mut [bool]) -> bool {
        let unused = || {
            let nics = self.candidates[gpu].iter().copied();
            nics.filter(|nic| self.users[*nic] == 0)
        };
        if let Some(nic) = unused().find(|nic| owner[*nic].is_none()) {
            owner[nic] = Some(gpu);
            return true;
        }
        for nic in unused() {
            if std::mem::replace(&mut tried[nic], true) {
                continue;
            }
            if owner[nic].is_some_and(|other| self.augment(other, owner, tried)) {
                owner[nic] = Some(gpu);
                return true;
            }
        }
        false
    }
}

/// Returns the nearest NICs of `usable`, reduced to the fastest of these NICs, in the order of bus ids.
fn candidates(topology: &Topology, gpu: usize, usable: &[usize]) -> Vec<usize> {
    let distance = |nic: &usize| topology.distance(&topology.gpus[gpu], &topology.nics[*nic]);
    let rate = |nic: &usize| topology.nics[*nic].rate_mbps;
    let Some(nearest) = usable.iter().map(distance).min() else {
        return Vec::new();
    };
    let near = usable.iter().filter(|nic| distance(nic) == nearest);
    let fastest = near.clone().map(rate).max().flatten();
    near.filter(|nic| rate(nic) == fastest).copied().collect()
}

/// Divides cores among the GPUs that share them, if there is at least one core for each of these GPUs.
fn divide_cores(selection: &mut [GpuNics]) {
    let whole: Vec<Vec<u32>> = selection.iter().map(|gpu| gpu.cores.clone()).collect();
    for (i, gpu) in selection.iter_mut().enumerate() {
        let parts = whole.iter().filter(|cores| **cores == whole[i]).count();
        let part = whole[..i]
            .iter()
            .filter(|cores| **cores == whole[i])
            .count();
        let count = whole[i].len();
        if count >= parts {
            gpu.cores = whole[i][part * count / parts..(part + 1) * count / parts].to_vec();
        }
    }
}
