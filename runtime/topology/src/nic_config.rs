//! What a person wants: which NICs at all, or which for which GPU.

use crate::nic::NicKind;
use crate::pci::BusId;
use crate::topology::Topology;
use std::collections::BTreeMap;
use std::fmt;

/// A configuration, resolved to indices in a [`Topology`].
///
/// Entries are separated by `;`. `mlx5_0,mlx5_3` allows these NICs only, and leaves it to the distance which GPU has
/// which. `0=mlx5_0,mlx5_1` or `0000:1b:00.0=mlx5_0` gives a GPU its rails, in this order; a number counts GPUs in the
/// order of their bus ids. A device's name stands for all its ports that are up, `mlx4_0:2` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// NICs that may be used for GPUs which `fixed` does not name.
    pub(crate) allowed: Vec<usize>,
    /// Rails by GPU.
    pub(crate) fixed: BTreeMap<usize, Vec<usize>>,
}

/// All mistakes of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not say which NICs to use: {}", Sentences(issues))]
pub struct NicConfigError {
    /// The configuration.
    pub text: String,
    /// What is wrong with it.
    pub issues: Vec<NicConfigIssue>,
}

/// A mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NicConfigIssue {
    /// No such NIC.
    #[error("there is no NIC {name:?}; there {}", Known(known))]
    NoNic {
        /// As it is written.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// No such GPU.
    #[error("there is no GPU {name:?}; there {}", Known(known))]
    NoGpu {
        /// As it is written.
        name: String,
        /// Those that there are, as `index (bus id)`.
        known: Vec<String>,
    },
    /// A NIC without an active port.
    #[error("NIC {name} is down; leave it out, or bring its port up")]
    Down {
        /// Its name.
        name: String,
    },
    /// Something is named twice where once is enough.
    #[error("{name} is named twice")]
    Twice {
        /// As it is written.
        name: String,
    },
    /// An entry without NICs.
    #[error("{entry:?} names no NIC; write GPU=NIC,NIC or NIC,NIC")]
    Empty {
        /// The entry.
        entry: String,
    },
    /// NICs that cannot talk to each other's peers.
    #[error("NICs of several kinds are given to GPUs ({kinds}); give all GPUs one kind")]
    MixedKinds {
        /// The kinds.
        kinds: String,
    },
}

struct Sentences<'a>(&'a [NicConfigIssue]);

impl fmt::Display for Sentences<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, issue) in self.0.iter().enumerate() {
            write!(f, "{}{issue}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

struct Known<'a>(&'a [String]);

impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("is none"),
            [one] => write!(f, "is {one}"),
            several => write!(f, "are {}", several.join(", ")),
        }
    }
}

impl NicConfig {
    /// What `text` says of the GPUs and NICs of `topology`; an empty text wants nothing special.
    ///
    /// # Errors
    /// All mistakes: names of what is not there, NICs that are down, what is named twice.
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

/// The kinds of `nics`, each once.
fn kinds<'a>(topology: &Topology, nics: impl Iterator<Item = &'a usize>) -> Vec<NicKind> {
    let mut kinds: Vec<NicKind> = nics.map(|nic| topology.nics[*nic].kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

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
