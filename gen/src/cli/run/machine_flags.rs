//! [`MachineFlags`]: the flags that choose the GPUs on which kernels run.

use crate::cli::Failure;
use crate::cli::environment;
use crate::cli::format::count;
use crate::cli::input::{Kernel, Loaded, Overrides, Sources};
use crate::cli::machine::{self, DeviceChoice, Machine, Simulated};
use crate::cli::output::print_note;
use mkernel::{Communicator, KernelPlan, Simulation, spec::Device};

/// The file that is run if no kernel is given, and its text.
const DEFAULT: (&str, &str) = ("examples/small.toml", include_str!("small.toml"));

/// The flags that choose the GPUs on which kernels run.
#[derive(Debug, clap::Args)]
pub struct MachineFlags {
    /// GPUs that run the kernels [default: MKERNEL_DEVICE, else auto]
    #[arg(long, value_enum)]
    device: Option<DeviceChoice>,
    /// Plan for this many ranks instead of the declared world
    #[arg(long, value_name = "COUNT")]
    ranks: Option<u32>,
    /// SMs of a simulated GPU [default: MKERNEL_SIM_SMS, else 8]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Simulated GPUs")]
    sms: Option<u32>,
    /// How unfair the schedule is to ranks, CTAs and warps, 0 to 100 [default: MKERNEL_SIM_SKEW, else 20]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100), help_heading = "Simulated GPUs")]
    skew: Option<u32>,
}

impl MachineFlags {
    /// The GPUs to run on, and the kernels that are planned for them.
    pub fn choose(
        &self,
        sources: &Sources,
        timeline: bool,
    ) -> Result<(Machine, Vec<(Kernel, KernelPlan)>), Failure> {
        let gpus = machine::gpus();
        let device = DeviceChoice::or_environment(self.device)?;
        if device == DeviceChoice::Gpu || device == DeviceChoice::Auto && gpus > 0 {
            let kernels = self.load(sources, &Device::default())?.planned()?;
            let needed = kernels.iter().map(|(_, plan)| plan.spec.world()).max();
            if device == DeviceChoice::Gpu || needed.is_some_and(|needed| needed <= gpus) {
                return Ok((Machine::Gpus, kernels));
            }
        }
        let usual = Simulation::default();
        let sms = environment::number("MKERNEL_SIM_SMS", 1..=1024)?;
        let skew = environment::number("MKERNEL_SIM_SKEW", 0..=100)?;
        let simulated = Simulated {
            sms: self.sms.or(sms.map(|sms| sms as u32)).unwrap_or(usual.sms),
            skew: self
                .skew
                .or(skew.map(|skew| skew as u32))
                .unwrap_or(usual.skew),
            timeline,
        };
        let kernels = self
            .load(sources, &Device::simulated(simulated.sms))?
            .planned()?;
        if device == DeviceChoice::Auto {
            let gpus = count(gpus as usize, "GPU");
            print_note(&format!(
                "this host has {gpus}, so GPUs are simulated (--device gpu requires real ones)"
            ));
        }
        Ok((Machine::Simulated(simulated), kernels))
    }

    /// The GPUs of a job of several processes, and the kernels that are planned for its ranks.
    pub fn of_launched(
        &self,
        sources: &Sources,
        ranks: &Communicator,
    ) -> Result<(Machine, Vec<(Kernel, KernelPlan)>), Failure> {
        let usual = Simulation::default();
        let machine = match ranks.is_simulated() {
            false => Machine::Gpus,
            true => Machine::Simulated(Simulated {
                sms: ranks.device().sm_count,
                skew: usual.skew,
                timeline: false,
            }),
        };
        let changes = Overrides {
            world: Some((ranks.world(), "WORLD_SIZE")),
            resize: true,
            default: Some(DEFAULT),
        };
        let kernels = sources.load(ranks.device(), changes)?.planned()?;
        Ok((machine, kernels))
    }

    /// Whether a flag is only for simulated GPUs.
    pub fn is_simulated(&self) -> bool {
        self.sms.is_some() || self.skew.is_some()
    }

    fn load(&self, sources: &Sources, device: &Device) -> Result<Loaded, Failure> {
        let changes = Overrides {
            world: self.ranks.map(|ranks| (ranks, "--ranks")),
            resize: true,
            default: Some(DEFAULT),
        };
        sources.load(device, changes)
    }
}
