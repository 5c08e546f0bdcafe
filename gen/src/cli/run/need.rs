//! What a run on simulated GPUs needs of this host's memory, before any of it is allocated.

use super::data::reference_bytes;
use crate::cli::failure::Failure;
use crate::cli::format::bytes;
use mkernel::{KernelPlan, Simulation};
use rustix::process::{Resource, getrlimit};
use std::fs;

/// How many of `wanted` jobs this host's memory allows side by side; an error if it does not allow one.
pub fn jobs_that_fit(
    label: &str,
    plan: &KernelPlan,
    calls: u32,
    wanted: usize,
) -> Result<usize, Failure> {
    let needed = host_bytes(plan, calls);
    match available_bytes() {
        Some(available) if needed > available => Err(Failure::HostMemory {
            label: label.to_owned(),
            needed: bytes(needed),
            available: bytes(available),
        }),
        Some(available) => Ok(wanted.min((available / needed.max(1)) as usize).max(1)),
        None => Ok(wanted),
    }
}

/// What a job takes at most: its GPUs, and the data and references of all ranks. An estimate, a little too high.
fn host_bytes(plan: &KernelPlan, calls: u32) -> u64 {
    /// Of a value in fp32, and of one in bf16.
    const FP32: u64 = 4;
    const BF16: u64 = 2;
    let world = plan.spec.world();
    let (read, written) = (0..world)
        .map(|rank| plan.operand_bytes(rank))
        .fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    let calls = u64::from(calls);
    let gpus = u64::from(world) * plan.workspace.bytes + (calls + 1) * (read + written);
    let inputs = calls * read;
    // One more call repeats the first.
    let results = (calls + 1) * written / BF16 * FP32;
    // Ranks make their references at the same time: operands in fp32, then sums and what was rounded for them.
    let sums = reference_bytes(plan);
    let references = u64::from(world) * read / BF16 * FP32 + sums;
    [Simulation::host_bytes(gpus), inputs, results, references]
        .into_iter()
        .fold(0, u64::saturating_add)
}

/// What this process can still allocate, by the system's memory, its control group and its limit; none if nothing is
/// known.
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

/// The bytes behind `name` in a text like /proc/meminfo.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel::{Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelSpec};

    fn plan(m: u64) -> KernelPlan {
        let config = GemmConfig {
            m: Dim::Static(m),
            n: Dim::Static(8),
            k: Dim::Static(8),
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        let spec = KernelSpec::validate(KernelConfig::new(2, config)).expect("valid");
        KernelPlan::new(&spec, &Device::simulated(8)).expect("a plan")
    }

    #[test]
    fn what_this_host_cannot_hold_is_an_error_with_the_figures() {
        assert_eq!(jobs_that_fit("k", &plan(64), 3, 2).ok(), Some(2));
        let error = jobs_that_fit("k", &plan(2_147_483_647), 3, 2).expect_err("too large");
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
