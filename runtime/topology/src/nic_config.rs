//! [`NicConfig`]: a user's configuration of the NICs to use, for all GPUs or for single ones.

use crate::nic::NicKind;
use crate::pci::BusId;
use crate::topology::Topology;
use std::collections::BTreeMap;
use std::fmt;

/// A configuration, resolved to indices in a [`Topology`].
///
/// Entries are separated by `;`. The entry `mlx5_0,mlx5_3` restricts the selection to these NICs, and the distance decides
/// which GPU uses which NIC. The entry `0=mlx5_0,mlx5_1` or `0000:1b:00.0=mlx5_0` assigns rails to a GPU, in the listed order.
/// A number is the index of a GPU in the order of bus ids. The name of a device stands for all its active ports, and `mlx4_0:2`
/// stands for one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// The NICs for the GPUs that `fixed` does not contain.
    pub(crate) allowed: Vec<usize>,
    /// The rails that are assigned to GPUs, by index of the GPU.
    pub(crate) fixed: BTreeMap<usize, Vec<usize>>,
}

/// All errors of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the NIC configuration {text:?} is invalid: {}", Sentences(issues))]
pub struct NicConfigError {
    /// The configuration.
    pub text: String,
    /// The errors of the configuration.
    pub issues: Vec<NicConfigIssue>,
}

/// An error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NicConfigIssue {
    /// A NIC does not exist.
    #[error(
        "there is no NIC {name:?}; the NICs of this host are: {}",
        Known(known)
    )]
    NoNic {
        /// The name in the configuration.
        name: String,
        /// The names of the existing NICs.
        known: Vec<String>,
    },
    /// A GPU does not exist.
    #[error(
        "there is no GPU {name:?}; the GPUs of this host are: {}",
        Known(known)
    )]
    NoGpu {
        /// The name in the configuration.
        name: String,
        /// The existing GPUs as `index (bus id)`.
        known: Vec<String>,
    },
    /// A NIC has no active port.
    #[error("NIC {name} is down; remove it, or bring its port up")]
    Down {
        /// The name of the NIC.
        name: String,
    },
    /// A NIC or a GPU is listed twice.
    #[error("{name} is listed twice")]
    Twice {
        /// The name in the configuration.
        name: String,
    },
    /// An entry lists no NICs.
    #[error("{entry:?} lists no NIC; write GPU=NIC,NIC or NIC,NIC")]
    Empty {
        /// The entry.
        entry: String,
    },
    /// GPUs are assigned NICs of different kinds, which cannot exchange data with each other.
    #[error(
        "GPUs are assigned NICs of different kinds ({kinds}); assign NICs of one kind to all GPUs"
    )]
    MixedKinds {
        /// The kinds.
        kinds: String,
    },
}

/// Shows issues as a list.
struct Sentences<'a>(&'a [NicConfigIssue]);

impl fmt::Display for Sentences<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, issue) in self.0.iter().enumerate() {
            write!(f, "{}{issue}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// Shows known names as a list.
struct Known<'a>(&'a [String]);

impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("none"),
            known => f.write_str(&known.join(", ")),
        }
    }
}

impl NicConfig {
    /// Parses a configuration of the GPUs and NICs of `topology`. An empty text allows all NICs.
    ///
    /// # Errors
    ///
    /// Returns all errors of the configuration: unknown names, NICs that are down, names that are listed twice.
    pub fn parse(text: &str, topology: &Topology) -> Result<Self, NicConfigError> {
        let mut issues = Vec::new();
        let mut allowed: Option<Vec<usize>> = None;
        let mut fixed = BTreeMap::new();
        for entry in text.split(';').map(str::trim).filter(|e| !e.is_empty()) {
            let (gpu, names) = match entry.split_once('=') {
                Some((gpu, names)) => (Some(gpu.trim()), names),
                None => (None, entry),
            };
            let nics = find_nics(topology, entry, names, &mut issues);
            let Some(name) = gpu else {
                allowed.get_or_insert_default().extend(nics);
                continue;
            };
            match find_gpu(topology, name) {
                Ok(gpu) => {
                    if fixed.insert(gpu, nics).is_some() {
                        let name = format!("GPU {name}");
                        issues.push(NicConfigIssue::Twice { name });
                    }
                }
                Err(issue) => issues.push(issue),
            }
        }
        let kinds = kinds(topology, fixed.values().flatten());
        if kinds.len() > 1 {
            let kinds: Vec<String> = kinds.iter().map(NicKind::to_string).collect();
            let kinds = kinds.join(", ");
            issues.push(NicConfigIssue::MixedKinds { kinds });
        }
        if !issues.is_empty() {
            let text = text.to_owned();
            return Err(NicConfigError { text, issues });
        }
        let is_whole = |nic: &usize| topology.nics[*nic].part_of.is_none();
        let all = || (0..topology.nics.len()).filter(is_whole).collect();
        Ok(Self {
            allowed: allowed.unwrap_or_else(all),
            fixed,
        })
    }
}

/// Returns the kinds of `nics`, each once.
fn kinds<'a>(topology: &Topology, nics: impl Iterator<Item = &'a usize>) -> Vec<NicKind> {
    let mut kinds: Vec<NicKind> = nics.map(|nic| topology.nics[*nic].kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// Returns the active ports that `names` lists.
fn find_nics(
    topology: &Topology,
    entry: &str,
    names: &str,
    issues: &mut Vec<NicConfigIssue>,
) -> Vec<usize> {
    let mut found = Vec::new();
    let mut any = false;
    for name in names.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        any = true;
        let ports: Vec<usize> = (0..topology.nics.len())
            .filter(|i| topology.nics[*i].name == name || topology.nics[*i].device == name)
            .collect();
        let name = name.to_owned();
        if ports.is_empty() {
            let known = topology.nics.iter().map(|nic| nic.name.clone()).collect();
            issues.push(NicConfigIssue::NoNic { name, known });
            continue;
        }
        let up: Vec<usize> = (ports.into_iter())
            .filter(|i| topology.nics[*i].is_up)
            .collect();
        if up.is_empty() {
            issues.push(NicConfigIssue::Down { name });
        } else if up.iter().any(|nic| found.contains(nic)) {
            issues.push(NicConfigIssue::Twice { name });
        } else {
            found.extend(up);
        }
    }
    if !any {
        let entry = entry.to_owned();
        issues.push(NicConfigIssue::Empty { entry });
    }
    found
}

/// Returns the index of the GPU with the given index or bus id.
fn find_gpu(topology: &Topology, name: &str) -> Result<usize, NicConfigIssue> {
    let by_index = name.parse::<usize>().ok();
    let by_index = by_index.filter(|index| *index < topology.gpus.len());
    let by_bus_id = || topology.gpu_at(name.parse::<BusId>().ok()?);
    by_index.or_else(by_bus_id).ok_or_else(|| {
        let known = (topology.gpus.iter().enumerate())
            .map(|(index, gpu)| format!("{index} ({})", gpu.location.bus_id));
        NicConfigIssue::NoGpu {
            name: name.to_owned(),
            known: known.collect(),
        }
    })
}
