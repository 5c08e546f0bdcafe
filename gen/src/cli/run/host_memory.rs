//! Estimates the host memory that a run on simulated GPUs needs, before it allocates any.

use super::kernel_run::KernelRun;
use super::operators::reference_bytes;
use super::reference::NARROWEST_BYTES;
use crate::cli::failure::Failure;
use crate::cli::format::bytes;
use crate::cli::machine::Machine;
use mkernel::{KernelPlan, Simulation};
use rustix::process::{Resource, getrlimit};
use std::fs;

/// The memory of this host, and the memory that runs need.
pub struct Memory {
    /// An upper estimate of the bytes that a run of each kernel needs. 0 on GPUs.
    pub needed_bytes: Vec<u64>,
    /// The bytes that this process can allocate, or [`u64::MAX`] if no limit is known.
    pub available_bytes: u64,
}

impl Memory {
    /// Estimates the memory of runs on simulated GPUs. An error if this host does not have the memory for a kernel.
    pub fn of(kernels: &[KernelRun]) -> Result<Self, Failure> {
        let available = available_bytes().unwrap_or(u64::MAX);
        let needed = kernels.iter().map(|run| match run.machine {
            Machine::Gpus => Ok(0),
            Machine::Simulated(_) => {
                let needed = host_bytes(run.plan, run.calls);
                check(&run.kernel.label, needed, available).map(|()| needed)
            }
        });
        Ok(Self {
            needed_bytes: needed.collect::<Result<_, _>>()?,
            available_bytes: available,
        })
    }
}

fn check(label: &str, needed: u64, available: u64) -> Result<(), Failure> {
    if needed <= available {
        return Ok(());
    }
    Err(Failure::HostMemory {
        label: label.to_owned(),
        needed: bytes(needed),
        available: bytes(available),
    })
}

/// An upper estimate of the bytes that a job needs for its GPUs and for the data and references of all ranks.
fn host_bytes(plan: &KernelPlan, calls: u32) -> u64 {
    const FP32: u64 = 4;
    let world = plan.spec.world();
    let (read, written) = (0..world)
        .map(|rank| plan.operand_bytes(rank))
        .fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    let calls = u64::from(calls);
    let gpus = u64::from(world) * plan.workspace_bytes() + (calls + 1) * (read + written);
    let inputs = calls * read / NARROWEST_BYTES * FP32;
    // Another call repeats the first.
    let results = (calls + 1) * written / NARROWEST_BYTES * FP32;
    // All ranks compute their references at the same time. They need operands in fp32, and sums.
    let sums = reference_bytes(plan);
    let references = u64::from(world) * read / NARROWEST_BYTES * FP32 + sums;
    [Simulation::host_bytes(gpus), inputs, results, references]
        .into_iter()
        .fold(0, u64::saturating_add)
}

/// The bytes that this process can still allocate by the limits of the system, of its control group and of the process,
/// or none if these are unknown.
fn available_bytes() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let system = read("/proc/meminfo").and_then(|text| kib_of(&text, "MemAvailable:"));
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max").map(|most| {
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        most.saturating_sub(used)
    });
    let address_space = getrlimit(Resource::As).current.map(|most| {
        let used = read("/proc/self/status").and_then(|text| kib_of(&text, "VmSize:"));
        most.saturating_sub(used.unwrap_or(0))
    });
    [system, group, address_space].into_iter().flatten().min()
}

/// The value of `name` in a text such as /proc/meminfo, in bytes.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel::{
        KernelConfig,
        spec::{Device, Dim, GemmConfig, GemmOp, SizedSpec},
    };

    fn plan(m: u64) -> KernelPlan {
        let config = GemmConfig {
            m: Dim::Static(m),
            n: Dim::Static(8),
            k: Dim::Static(8),
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        let spec = SizedSpec::validate(KernelConfig::new(2, config)).expect("valid");
        KernelPlan::new(&spec, &Device::simulated(8)).expect("a plan")
    }

    #[test]
    fn a_job_larger_than_memory_is_an_error_with_sizes() {
        let check = |plan| check("k", host_bytes(&plan, 3), 1 << 40);
        assert!(check(plan(64)).is_ok());
        let error = check(plan(2_147_483_647)).expect_err("too large");
        let text = error.to_string();
        assert!(
            text.starts_with("k needs about ") && text.contains("TiB"),
            "{text}"
        );
    }

    #[test]
    fn figures_of_the_system() {
        let text = "MemTotal:  100 kB\nMemAvailable:   24034444 kB\n";
        assert_eq!(kib_of(text, "MemAvailable:"), Some(24_034_444 << 10));
        assert_eq!(kib_of(text, "VmSize:"), None);
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
