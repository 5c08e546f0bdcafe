//! [`KernelRun`]: a kernel that runs, and the machine that runs it.

use super::repro_command;
use crate::cli::format::count;
use crate::cli::input::Kernel;
use crate::cli::machine::Machine;
use mkernel::KernelPlan;

/// The properties that all runs of one kernel share.
pub struct KernelRun<'a> {
    pub kernel: &'a Kernel,
    pub plan: &'a KernelPlan,
    pub machine: Machine,
    pub calls: u32,
    /// The value of `--kernel` that chooses this kernel alone, if there are several kernels.
    pub chosen_by: Option<String>,
    /// The rank of this process, if other processes have the other ranks.
    pub rank: Option<u32>,
}

/// The value of `--kernel` that chooses `kernel` among `kernels`: its label or, if another kernel has the same label, its
/// place. `None` if there is no other kernel.
pub fn chosen_by(kernel: &Kernel, kernels: &[(Kernel, KernelPlan)]) -> Option<String> {
    let same = |(other, _): &&(Kernel, KernelPlan)| other.label == kernel.label;
    match (kernels.len(), kernels.iter().filter(same).count()) {
        (1, _) => None,
        (_, 1) => Some(kernel.label.clone()),
        _ => Some(kernel.location.clone()),
    }
}

impl KernelRun<'_> {
    /// Describes the GPUs of this process, as in `2 simulated GPUs with 8 SMs, skew 20` or `1 GPU, rank 3 of 16`.
    pub fn device(&self) -> String {
        let world = self.plan.spec.world();
        match self.rank {
            None => self.gpus(world as usize),
            Some(rank) => format!("{}, rank {rank} of {world}", self.gpus(1)),
        }
    }

    fn gpus(&self, number: usize) -> String {
        match self.machine {
            Machine::Gpus => count(number, "GPU"),
            Machine::Simulated(simulated) => format!(
                "{} with {}, skew {}",
                count(number, "simulated GPU"),
                count(simulated.sms as usize, "SM"),
                simulated.skew
            ),
        }
    }

    /// The command that repeats the run with `seed`.
    pub fn repro_command(&self, seed: u64) -> String {
        let device = match self.machine {
            Machine::Gpus => "gpu",
            Machine::Simulated(_) => "sim",
        };
        let kernel = self.chosen_by.as_deref();
        repro_command::command(std::env::args_os(), kernel, seed, device)
    }
}
