//! [`TimedKernels`]: the kernels that a command times on the GPUs of this host.

use super::failure::Failure;
use super::input::{Kernel, Overrides, Sources};
use super::machine::{self, DeviceChoice};
use mkernel::{KernelPlan, spec::Device};
use mkernel_spec::WORLDS;

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
        self.on_gpus(self.plan()?)
    }

    /// The kernels of a file in the program, as [`load`](Self::load) returns kernels, for all GPUs of the host or `--ranks`.
    pub fn plan_file(
        &self,
        file: (&'static str, &'static str),
    ) -> Result<Vec<(Kernel, KernelPlan)>, Failure> {
        if !self.sources.is_empty() {
            return Err(Failure::Usage(
                "--preset has kernels of its own; remove the other kernels and sizes, or --preset",
            ));
        }
        let most = |world: &u32| *world <= machine::gpus();
        let world = WORLDS.into_iter().filter(most).max().unwrap_or(1);
        self.planned((self.ranks.unwrap_or(world), "--ranks").into(), Some(file))
    }

    /// The kernels, planned for an H200.
    pub fn plan(&self) -> Result<Vec<(Kernel, KernelPlan)>, Failure> {
        self.planned(self.ranks.map(|ranks| (ranks, "--ranks")), None)
    }

    fn planned(
        &self,
        world: Option<(u32, &'static str)>,
        default: Option<(&'static str, &'static str)>,
    ) -> Result<Vec<(Kernel, KernelPlan)>, Failure> {
        let overrides = Overrides {
            world,
            resize: true,
            default,
        };
        let kernels = self.sources.load(&Device::default(), overrides)?;
        kernels.planned()
    }

    /// The kernels, if this host has the GPUs.
    pub fn on_gpus(
        &self,
        kernels: Vec<(Kernel, KernelPlan)>,
    ) -> Result<Vec<(Kernel, KernelPlan)>, Failure> {
        let device = DeviceChoice::or_environment(self.device)?;
        if device == DeviceChoice::Sim {
            return Err(Failure::Usage(SIMULATED));
        }
        let needed = kernels.iter().map(|(_, plan)| plan.spec.world()).max();
        let (needed, found) = (needed.unwrap_or(0), machine::gpus());
        if device == DeviceChoice::Auto && needed > found {
            return Err(Failure::TooFewGpus { needed, found });
        }
        Ok(kernels)
    }
}
