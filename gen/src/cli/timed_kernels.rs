//! [`TimedKernels`]: the kernels that a command times on the GPUs of this host.

use super::failure::Failure;
use super::input::{Kernel, Overrides, Sources};
use super::machine::{self, DeviceChoice};
use mkernel::{KernelPlan, spec::Device};

/// The reason why times are not measured on simulated GPUs.
const SIMULATED: &str = "times of simulated GPUs mean nothing, so this command needs GPUs: remove --device sim and MKERNEL_DEVICE, or check results by `mkernel-gen run`";

/// Flags and files that declare kernels, and flags of the GPUs that run them.
#[derive(Debug, clap::Args)]
pub struct TimedKernels {
    #[command(flatten)]
    pub sources: Sources,
    /// GPUs that run the kernels [default: MKERNEL_DEVICE, else auto]; simulated GPUs have no times
    #[arg(long, value_enum)]
    device: Option<DeviceChoice>,
    /// Plan for this many ranks instead of the declared world
    #[arg(long, value_name = "COUNT")]
    ranks: Option<u32>,
}

impl TimedKernels {
    /// The kernels, planned for an H200. An error if this host has too few GPUs.
    pub fn load(&self) -> Result<Vec<(Kernel, KernelPlan)>, Failure> {
        let device = DeviceChoice::or_environment(self.device)?;
        if device == DeviceChoice::Sim {
            return Err(Failure::Usage(SIMULATED));
        }
        let overrides = Overrides {
            world: self.ranks.map(|ranks| (ranks, "--ranks")),
            resize: true,
            default: None,
        };
        let kernels = self.sources.load(&Device::default(), overrides)?;
        let kernels = kernels.planned()?;
        let needed = kernels.iter().map(|(_, plan)| plan.spec.world()).max();
        let (needed, found) = (needed.unwrap_or(0), machine::gpus());
        if device == DeviceChoice::Auto && needed > found {
            return Err(Failure::TooFewGpus { needed, found });
        }
        Ok(kernels)
    }
}
