//! [`LaunchedRank`]: the rank of this process and the address of rank 0, from the variables in [`LAUNCHERS`].

use super::rendezvous_point::{self, Placement, RendezvousPoint};
use super::variable::{parse, wrong};
use crate::error::{ClusterError, EnvironmentError, Error};

/// The variables of one launcher.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    world: &'static str,
    /// Alternative variables for one value. The first variable that is set applies.
    local_rank: &'static [&'static str],
    local_world: &'static [&'static str],
    /// The variables that together are the name of the job.
    job: &'static [&'static str],
}

/// The launchers, innermost first. If one launcher starts another, the variables of both are set.
const LAUNCHERS: [Launcher; 5] = [
    // See pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
    Launcher {
        name: "torchrun",
        rank: "RANK",
        world: "WORLD_SIZE",
        local_rank: &["LOCAL_RANK"],
        local_world: &["LOCAL_WORLD_SIZE"],
        job: &["TORCHELASTIC_RUN_ID"],
    },
    // See docs.open-mpi.org, "Environment variables set for MPI applications".
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world: "OMPI_COMM_WORLD_SIZE",
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_world: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        job: &["PMIX_NAMESPACE"],
    },
    // Hydra is part of both MPICH and Intel MPI. The second names are names of Cray's PMI.
    Launcher {
        name: "MPICH or Intel MPI",
        rank: "PMI_RANK",
        world: "PMI_SIZE",
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        local_world: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        job: &[],
    },
    // See slurm.schedmd.com/srun.html, "Output environment variables". A batch script also has SLURM_PROCID and
    // SLURM_NTASKS, although it is not a rank. Only srun sets the number of tasks of a step.
    Launcher {
        name: SRUN,
        rank: "SLURM_PROCID",
        world: "SLURM_STEP_NUM_TASKS",
        local_rank: &["SLURM_LOCALID"],
        local_world: &[],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
    // PMIx provides the number of ranks only by calls. Its rank is compared with the ranks of other launchers.
    Launcher {
        name: "PMIx",
        rank: "PMIX_RANK",
        world: "",
        local_rank: &[],
        local_world: &[],
        job: &[],
    },
];
const SRUN: &str = "srun";

/// The largest number of ranks. It is far more than any job has, and bounds the memory that ranks use for each other.
pub(crate) const MAX_WORLD: u32 = 4096;

/// The rank of this process, as its launcher has set it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LaunchedRank {
    pub rank: u32,
    pub world: u32,
    /// The number of this process on its host, if the launcher sets it.
    pub local_rank: Option<u32>,
    /// The connection of this rank to rank 0. `None` if there is only one rank.
    pub rendezvous: Option<RendezvousPoint>,
}

pub(super) fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<LaunchedRank, Error> {
    let sets: Vec<Set> = LAUNCHERS
        .iter()
        .map(|launcher| Set::read(launcher, &lookup))
        .collect();
    let Some(chosen) = sets.iter().position(Set::is_whole) else {
        return Err(incomplete(&sets));
    };
    let own = &sets[chosen];
    let launcher = own.launcher;
    let number = |name, expected| {
        parse::<u32>(&lookup, name, expected)?.ok_or_else(|| wrong(name, None, expected))
    };
    let world = number(launcher.world, "the number of ranks")?;
    let rank = number(launcher.rank, "this process's rank")?;
    if world == 0 {
        return Err(Error::Cluster(ClusterError::World(0)));
    }
    if world > MAX_WORLD {
        let value = Some(world.to_string());
        return Err(wrong(launcher.world, value, "4096 or less"));
    }
    if rank >= world {
        return Err(own.contradiction("a rank must be less than the number of ranks", &[]));
    }
    // torchrun assigns ranks in an order of its own, so other launchers may disagree with it.
    if lookup("TORCHELASTIC_RUN_ID").is_none() {
        for other in sets[..chosen].iter().chain(&sets[chosen + 1..]) {
            if other.contradicts(rank, world) {
                return Err(own.contradiction("launchers disagree", &[other]));
            }
        }
    }
    let local = Local::read(own, &lookup)?;
    local.check(own, world)?;
    let rendezvous = if world == 1 {
        None
    } else {
        let placement = Placement {
            world,
            local_world: local.world,
            under_srun: launcher.name == SRUN,
            job: launcher.job,
        };
        Some(rendezvous_point::read(&lookup, &placement)?)
    };
    Ok(LaunchedRank {
        rank,
        world,
        local_rank: local.rank,
        rendezvous,
    })
}

/// Returns whether variables of a launcher are set, also if they are incomplete.
pub(super) fn is_any_set(lookup: impl Fn(&str) -> Option<String>) -> bool {
    let mut sets = LAUNCHERS.iter().map(|one| Set::read(one, &lookup));
    sets.any(|set| set.is_any())
}

/// Returns the names of all variables that launchers set and [`Communicator::from_env`](crate::Communicator::from_env) reads. A
/// program that launches ranks itself removes the variables of the launcher that has started the program.
pub fn launcher_variables() -> impl Iterator<Item = &'static str> {
    let of = |one: &'static Launcher| {
        let others = [one.local_rank, one.local_world, one.job];
        [one.rank, one.world]
            .into_iter()
            .chain(others.into_iter().flatten().copied())
    };
    let own = LAUNCHERS.iter().flat_map(of);
    own.filter(|name| !name.is_empty())
        .chain(rendezvous_point::VARIABLES)
}

/// The values of one launcher's variables.
struct Set {
    launcher: &'static Launcher,
    rank: Option<String>,
    world: Option<String>,
}

impl Set {
    fn read(launcher: &'static Launcher, lookup: &impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| Some(name).filter(|name| !name.is_empty()).and_then(lookup);
        let (mut rank, world) = (get(launcher.rank), get(launcher.world));
        if launcher.name == SRUN && world.is_none() {
            rank = None;
        }
        Self {
            launcher,
            rank,
            world,
        }
    }

    fn is_whole(&self) -> bool {
        self.rank.is_some() && self.world.is_some()
    }

    fn is_any(&self) -> bool {
        self.rank.is_some() || self.world.is_some()
    }

    /// Returns whether these variables contradict the variables of an inner launcher. If the numbers of ranks differ, an outer
    /// launcher has started the inner launcher, which is no contradiction. If the numbers are equal, the ranks must be equal
    /// too.
    fn contradicts(&self, rank: u32, world: u32) -> bool {
        let number =
            |text: &Option<String>| text.as_ref().and_then(|t| t.trim().parse::<u32>().ok());
        match (number(&self.rank), number(&self.world)) {
            (Some(other), Some(same)) => same == world && other != rank,
            (Some(other), None) => other != rank,
            (None, Some(other)) => other != world,
            (None, None) => false,
        }
    }

    /// Returns the variables with their values, including variables that are not set.
    fn variables(&self) -> Vec<(&'static str, Option<String>)> {
        let pairs = [
            (self.launcher.rank, self.rank.clone()),
            (self.launcher.world, self.world.clone()),
        ];
        pairs
            .into_iter()
            .filter(|(name, _)| !name.is_empty())
            .collect()
    }

    fn contradiction(&self, problem: &'static str, others: &[&Self]) -> Error {
        let others = others.iter().flat_map(|set| set.variables());
        let set = |(_, value): &(_, Option<String>)| value.is_some();
        Error::Environment(EnvironmentError::Launcher {
            problem,
            variables: self
                .variables()
                .into_iter()
                .chain(others.filter(set))
                .collect(),
        })
    }
}

/// Returns the error if no launcher's variables are complete. The error names the variables that are set, and the missing
/// variables of the same launchers.
fn incomplete(sets: &[Set]) -> Error {
    let touched: Vec<&Set> = sets.iter().filter(|set| set.is_any()).collect();
    // If no variable is set, the error names the variables that a user can set without a launcher.
    let shown = if touched.is_empty() {
        vec![&sets[0]]
    } else {
        touched
    };
    let mut variables: Vec<_> = shown.iter().flat_map(|set| set.variables()).collect();
    if shown.iter().all(|set| set.launcher.world.is_empty()) {
        variables.extend(sets[0].variables());
    }
    Error::Environment(EnvironmentError::Launcher {
        problem: "variables are missing",
        variables,
    })
}

/// The variables of a launcher that describe the host.
struct Local {
    rank: Option<u32>,
    world: Option<u32>,
    /// The variables with their values.
    variables: Vec<(&'static str, Option<String>)>,
}

impl Local {
    fn read(own: &Set, lookup: &impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let launcher = own.launcher;
        let mut variables = Vec::new();
        let mut first = |names: &[&'static str]| -> Result<Option<u32>, Error> {
            let Some(name) = names.iter().find(|name| lookup(name).is_some()) else {
                return Ok(None);
            };
            variables.push((*name, lookup(name)));
            parse(lookup, name, "a whole number")
        };
        let rank = first(launcher.local_rank)?;
        let mut world = first(launcher.local_world)?;
        if launcher.name == SRUN {
            let name = "SLURM_STEP_TASKS_PER_NODE";
            let counts = lookup(name);
            variables.push((name, counts.clone()));
            let node = lookup("SLURM_NODEID").and_then(|node| node.trim().parse().ok());
            world = counts.and_then(|counts| tasks_of_node(&counts, node?));
        }
        Ok(Self {
            rank,
            world,
            variables,
        })
    }

    fn check(&self, own: &Set, world: u32) -> Result<(), Error> {
        // Users without a launcher choose GPUs by LOCAL_RANK alone, so a missing local world size is no error.
        let problem = match (self.rank, self.world) {
            (_, Some(local_world)) if local_world == 0 || local_world > world => {
                "the number of ranks on a host must be at least 1 and at most the number of all ranks"
            }
            (Some(local), Some(local_world)) if local >= local_world => {
                "a local rank must be less than the number of ranks on the host"
            }
            _ => return Ok(()),
        };
        let variables = own.variables().into_iter().chain(self.variables.clone());
        Err(Error::Environment(EnvironmentError::Launcher {
            problem,
            variables: variables.collect(),
        }))
    }
}

/// Returns entry `node` of a list like `8(x2),4`.
fn tasks_of_node(counts: &str, node: u32) -> Option<u32> {
    let mut first = 0u32;
    for part in counts.split(',') {
        let (tasks, nodes) = match part.trim().split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part.trim(), 1u32),
        };
        first = first.checked_add(nodes)?;
        if node < first {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
#[path = "launcher_tests.rs"]
mod tests;
