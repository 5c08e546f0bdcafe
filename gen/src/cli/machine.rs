//! [`Machine`]: the real or simulated GPUs that kernels run on.

use super::environment;
use super::failure::Failure;
use mkernel::{Communicator, Error, Simulation, error::DeviceError};
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;

/// The values of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceChoice {
    /// The GPUs of this host if there are enough, else simulated GPUs
    Auto,
    /// The GPUs of this host
    Gpu,
    /// Simulated GPUs, on any machine
    Sim,
}

impl DeviceChoice {
    /// The flag's value, otherwise the value of `MKERNEL_DEVICE`, otherwise [`DeviceChoice::Auto`].
    pub fn or_environment(given: Option<Self>) -> Result<Self, Failure> {
        match given {
            Some(choice) => Ok(choice),
            None => Ok(environment::choice("MKERNEL_DEVICE")?.unwrap_or(Self::Auto)),
        }
    }
}

/// Properties of simulated GPUs other than the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulated {
    /// The number of SMs of a GPU.
    pub sms: u32,
    /// The unfairness of the schedule, 0 to 100.
    pub skew: u32,
    /// Whether a timeline is recorded.
    pub timeline: bool,
}

/// The GPUs that kernels run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// The first GPUs of this host.
    Gpus,
    /// Simulated GPUs, on a simulated host of its own for each run.
    Simulated(Simulated),
}

impl Machine {
    /// The communicators of a job with `world` GPUs.
    pub fn ranks(&self, world: u32, seed: u64) -> Result<Vec<Communicator>, Error> {
        match self {
            Self::Gpus => {
                let ranks = Communicator::local(&(0..world as usize).collect::<Vec<_>>())?;
                // `local` gives simulated GPUs if MKERNEL_DEVICE asks for them.
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

/// The number of GPUs, counted by their device files. This does not load the driver, because a process that has loaded the driver
/// can no longer simulate GPUs.
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

/// The number of cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
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
