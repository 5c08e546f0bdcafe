//! Which NICs each GPU uses.
//!
//! The nearest NICs of a GPU are its candidates; of several as near, the fastest. Each round matches GPUs to candidates
//! that nobody has, as many as can be at once (augmenting paths: H. W. Kuhn, "The Hungarian method for the assignment
//! problem", 1955, in its form for unweighted graphs): so no two GPUs share a NIC while another one as near is free.
//! A GPU that gets none in the first round shares the candidate with the fewest users; further rounds add rails.

use crate::distance::Distance;
use crate::nic::{Nic, NicKind};
use crate::nic_config::{NicConfig, NicConfigError};
use crate::topology::Topology;
use serde::Serialize;

/// What was chosen for a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NicSelection {
    /// The kind of all chosen NICs: peers on other nodes must be of one kind. None where there is no NIC.
    #[serde(rename = "link")]
    pub kind: Option<NicKind>,
    /// By GPU.
    pub gpus: Vec<GpuNics>,
    /// What was left out, and why: sentences for people.
    pub notes: Vec<String>,
}

/// What was chosen for a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuNics {
    /// Index in [`Topology::gpus`].
    pub gpu: usize,
    /// NICs to spread its traffic over; empty where there is none.
    pub rails: Vec<Rail>,
    /// Physical cores for its proxy thread: those near its first rail, divided evenly among the GPUs that are there.
    pub cores: Vec<u32>,
}

impl GpuNics {
    /// The rate of the GPU's NICs together, one direction, GB/s, a NIC's rate being divided evenly among the GPUs that use
    /// it. None without a NIC, or where the tree does not give the rate of one.
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

/// One NIC of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rail {
    /// Index in [`Topology::nics`].
    pub nic: usize,
    /// From the GPU to the NIC.
    pub distance: Distance,
    /// Whether a person named it for this GPU.
    pub is_configured: bool,
    /// Other GPUs that use it.
    pub shared_with: Vec<usize>,
}

impl Topology {
    /// Gives each GPU its NICs; `wanted` is as [`NicConfig`] says, empty for the automatic choice.
    ///
    /// # Errors
    /// All mistakes in `wanted`.
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

    /// The one kind of NIC to use: that of NICs which were given to GPUs, else the kind with the highest total rate.
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
        // Of kinds with one rate the first: the last of them in reverse.
        let best = present.rev().max_by_key(|kind| total(*kind))?;
        for nic in up.iter().filter(|nic| nic.kind != best) {
            notes.push(format!(
                "{} is left out: it is {}, and {best} has the higher total rate",
                nic.name, nic.kind
            ));
        }
        Some(best)
    }

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

/// GPUs and their candidates, and who has what.
struct Matching {
    /// By GPU.
    candidates: Vec<Vec<usize>>,
    /// By GPU.
    rails: Vec<Vec<usize>>,
    /// By NIC: how many GPUs use it.
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

    /// Gives as many GPUs as possible one more NIC that nobody has. Whether any got one.
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

    /// Finds a free NIC for `gpu`, where need be by moving other GPUs of this round to NICs that suit them as well.
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

/// The nearest of `usable`, and of those the fastest, by bus id.
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

/// Where several GPUs have the same cores, gives each its own part of them, if there are enough.
fn divide_cores(selection: &mut [GpuNics]) {
    let whole: Vec<Vec<u32>> = selection.iter().map(|gpu| gpu.cores.clone()).collect();
    for (i, choice) in selection.iter_mut().enumerate() {
        let parts = whole.iter().filter(|cores| **cores == whole[i]).count();
        let part = whole[..i]
            .iter()
            .filter(|cores| **cores == whole[i])
            .count();
        let count = whole[i].len();
        if count >= parts {
            choice.cores = whole[i][part * count / parts..(part + 1) * count / parts].to_vec();
        }
    }
}
