//! [`Machine`]: the GPUs that kernels run on, real or simulated.

use super::environment;
use super::failure::Failure;
use mkernel::{Communicator, DeviceError, Error, Simulation};
use std::fs;
use std::path::Path;

/// Real GPUs, or simulated ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// GPUs if this host has enough, else simulated ones
    Auto,
    /// The GPUs of this host
    Gpu,
    /// Simulated GPUs, on any machine
    Sim,
}

impl Choice {
    /// What was chosen, else what `MKERNEL_DEVICE` says, else [`Choice::Auto`].
    pub fn or_environment(given: Option<Self>) -> Result<Self, Failure> {
        match given {
            Some(choice) => Ok(choice),
            None => Ok(environment::choice("MKERNEL_DEVICE")?.unwrap_or(Self::Auto)),
        }
    }
}

/// How simulated GPUs behave, but for the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulated {
    /// SMs of each.
    pub sms: u32,
    /// How unfair the schedule is, 0 to 100.
    pub skew: u32,
    /// Whether they keep what happened when.
    pub timeline: bool,
}

/// What kernels run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// The first GPUs of this host.
    Gpus,
    /// A simulated host for each run.
    Simulated(Simulated),
}

impl Machine {
    /// The ranks of a job with `world` GPUs.
    pub fn ranks(&self, world: u32, seed: u64) -> Result<Vec<Communicator>, Error> {
        match self {
            Self::Gpus => {
                let ranks = Communicator::local(&(0..world as usize).collect::<Vec<_>>())?;
                // MKERNEL_DEVICE has a say in what `local` means.
                match ranks.iter().any(Communicator::is_simulated) {
                    false => Ok(ranks),
                    true => Err(Error::Device(DeviceError::BackendConflict {
                        wanted: "the GPUs of this host",
                        chosen: "simulated GPUs",
                    })),
                }
            }
            Self::Simulated(simulated) => Communicator::simulated(&Simulation {
                ranks: world,
                seed,
                sms: simulated.sms,
                skew: simulated.skew,
                timeline: simulated.timeline,
            }),
        }
    }
}

/// GPUs that the kernel module shows. Asking the driver would load it, and a process that has loaded the real driver
/// cannot simulate any more.
pub fn gpus() -> u32 {
    gpus_in(Path::new("/dev"))
}

fn gpus_in(folder: &Path) -> u32 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    files
        .filter(|file| file.file_name().to_str().is_some_and(is_gpu))
        .count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_by_their_files() {
        let dir = tempfile::tempdir().expect("temporary folder");
        for name in [
            "nvidia0",
            "nvidia11",
            "nvidiactl",
            "nvidia-uvm",
            "nvidia",
            "null",
        ] {
            fs::write(dir.path().join(name), "").expect("file");
        }
        assert_eq!(gpus_in(dir.path()), 2);
        assert_eq!(gpus_in(&dir.path().join("absent")), 0);
    }
}
