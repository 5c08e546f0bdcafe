//! Estimates the time of runs on simulated GPUs, before they start.

use super::kernel_run::KernelRun;
use crate::cli::format::{bytes, duration};
use crate::cli::output::{WARNING, print_note};
use std::time::Duration;

/// Floating-point operations of kernels per second and run: a product of 2048x1024x1024 on one simulated GPU, measured on a
/// host with 2 busy cores.
const FLOPS: f64 = 5e8;
/// Bytes of device memory per second and run: `all_reduce` and `all_gather` of 8 MiB on 2 and 4 simulated GPUs, measured on the
/// same host.
const BYTES: f64 = 6e6;
/// The longest time without a warning.
const LONG: Duration = Duration::from_secs(600);

/// The operations and bytes of runs.
#[derive(Clone, Copy, Default)]
struct Effort {
    flops: f64,
    bytes: f64,
}

impl Effort {
    fn of(run: &KernelRun) -> Self {
        let traffic = &run.plan.body().traffic;
        // Another call repeats the first.
        let times = f64::from(run.plan.spec.world()) * f64::from(run.calls + 1);
        Self {
            flops: traffic.flops as f64 * times,
            bytes: traffic.memory_bytes as f64 * times,
        }
    }

    fn time(self) -> Duration {
        let seconds = self.flops / FLOPS + self.bytes / BYTES;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// Warns if the runs of all kernels with this number of seeds, `jobs` at a time, take longer than [`LONG`].
pub fn warn_if_long(kernels: &[KernelRun], seeds: u64, jobs: usize) {
    if let Some(text) = warning(kernels, seeds, jobs) {
        print_note(&text);
    }
}

fn warning(kernels: &[KernelRun], seeds: u64, jobs: usize) -> Option<String> {
    let times = seeds as f64;
    let all = kernels
        .iter()
        .map(Effort::of)
        .fold(Effort::default(), |all, one| Effort {
            flops: all.flops + one.flops * times,
            bytes: all.bytes + one.bytes * times,
        });
    let time = all.time() / jobs.max(1) as u32;
    (time > LONG).then(|| {
        format!(
            "{WARNING}warning:{WARNING:#} the simulation may take about {}: {:.1e} floating-point operations and {} of operands, at about {FLOPS:.0e} operations and {} a second in each of {jobs} concurrent runs; use smaller sizes, fewer --calls, --seeds or kernels (--kernel), or --device gpu",
            duration(time),
            all.flops,
            bytes(all.bytes as u64),
            bytes(BYTES as u64),
        )
    })
}
