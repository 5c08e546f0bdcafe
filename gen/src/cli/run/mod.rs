//! `mkernel-gen run`: runs operators on GPUs or simulated GPUs and checks every element of their results.

mod attention;
pub mod call_memory;
mod collective;
mod combine;
mod dispatch;
mod gemm;
mod host_memory;
pub mod inputs;
mod memory;
mod moe_layer;
mod operators;
mod other_batch;
#[cfg(test)]
mod random_runs;
pub mod ranks;
mod reference;
pub mod report;
mod repro_command;
mod routing;
mod tensor;
mod trace;
pub mod verdict;

use super::Failure;
use super::environment;
use super::fabric_test::Network;
use super::input::{Kernel, Loaded, Overrides, Sources};
use super::machine::{self, DeviceChoice, Machine, Simulated};
use crate::cli::format::count;
use crate::cli::output::print_stderr;
use mkernel::{KernelPlan, Simulation, spec::Device};
use ranks::{Job, Outcome};
use report::{KernelRun, Report};
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::SystemTime;

/// The file that is run if no kernel is given, and its text.
const DEFAULT: (&str, &str) = ("examples/small.toml", include_str!("small.toml"));

/// The number of simulated hosts that a process can have at the same time.
const MAX_HOSTS: usize = 8;

/// Seeds are below this limit, so that counting them never overflows.
pub const MAX_SEED: u64 = 1 << 63;

/// Arguments of `mkernel-gen run`. A kernel whose bits do not depend on the batch also computes a part of the first
/// call in another batch.
#[derive(Debug, clap::Args)]
pub struct Run {
    #[command(flatten)]
    sources: Sources,
    /// GPUs that run the kernels [default: MKERNEL_DEVICE, else auto]
    #[arg(long, value_enum)]
    device: Option<DeviceChoice>,
    /// Plan for this many ranks instead of the declared world
    #[arg(long, value_name = "COUNT")]
    ranks: Option<u32>,
    /// Number of calls, each with new data; another call repeats the first. If calls give the rows, those after the
    /// first have a random number of rows
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    calls: u32,
    /// Seed of the data, and of the order of events on simulated GPUs [default: MKERNEL_SIM_SEED, else a new seed
    /// each time]
    #[arg(long, value_name = "NUMBER", conflicts_with = "seeds", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(..MAX_SEED))]
    seed: Option<u64>,
    /// Run once for each seed from A to B - 1; runs on simulated GPUs are concurrent
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    seeds: Option<Range<u64>>,
    /// SMs of a simulated GPU [default: MKERNEL_SIM_SMS, else 8]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Simulated GPUs")]
    sms: Option<u32>,
    /// How unfair the schedule is to ranks, CTAs and warps, 0 to 100 [default: MKERNEL_SIM_SKEW, else 20]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100), help_heading = "Simulated GPUs")]
    skew: Option<u32>,
    /// Write a trace with a line for each event
    #[arg(long, value_name = "FILE", help_heading = "Simulated GPUs")]
    trace: Option<PathBuf>,
    /// Write a timeline as JSON for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE", help_heading = "Simulated GPUs")]
    timeline: Option<PathBuf>,
    #[command(flatten)]
    network: Network,
}

impl Run {
    /// Runs every kernel with every seed. Runs that fail do not stop the others.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let (machine, kernels) = self.machine_and_kernels()?;
        let seeds = match (&self.seeds, self.seed) {
            (Some(seeds), _) => seeds.clone(),
            (None, Some(seed)) => seed..seed + 1,
            (None, None) => {
                let seed = environment::number("MKERNEL_SIM_SEED", 0..=MAX_SEED - 1)?;
                let seed = seed.unwrap_or_else(seed_from_clock);
                seed..seed + 1
            }
        };
        self.check_flags(machine, kernels.len(), &seeds)?;
        self.check_network(&kernels)?;
        for (kernel, plan) in &kernels {
            self.concurrent_jobs(kernel, plan, machine, &seeds)?;
        }
        let mut report = Report::new(json);
        for (kernel, plan) in &kernels {
            let about = KernelRun {
                kernel,
                plan,
                machine,
                calls: self.calls,
            };
            report.kernel(&about)?;
            self.run_seeds(&about, seeds.clone(), |outcome| {
                report.outcome(&about, outcome)?;
                self.write_timeline(outcome)
            })?;
        }
        if machine == Machine::Gpus && report.machine_is_at_fault() {
            print_stderr("use --device sim to run without a GPU");
        }
        report.finish()
    }

    /// Flags of the network are errors if no kernel communicates between nodes.
    fn check_network(&self, kernels: &[(Kernel, KernelPlan)]) -> Result<(), Failure> {
        let crosses = |(_, plan): &(Kernel, KernelPlan)| plan.body().network.is_some();
        if self.network.is_given() && !kernels.iter().any(crosses) {
            return Err(Failure::Usage(
                "flags of the network are for kernels that communicate between nodes, and no kernel here does; add --nodes 2, or remove the flags",
            ));
        }
        Ok(())
    }

    /// The GPUs to run on, and the kernels that are planned for them.
    fn machine_and_kernels(&self) -> Result<(Machine, Vec<(Kernel, KernelPlan)>), Failure> {
        let gpus = machine::gpus();
        let device = DeviceChoice::or_environment(self.device)?;
        if device == DeviceChoice::Gpu || device == DeviceChoice::Auto && gpus > 0 {
            let kernels = self.load(&Device::default())?.planned()?;
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
            timeline: self.trace.is_some() || self.timeline.is_some(),
        };
        let kernels = self.load(&Device::simulated(simulated.sms))?.planned()?;
        if device == DeviceChoice::Auto {
            let gpus = count(gpus as usize, "GPU");
            print_stderr(&format!(
                "this host has {gpus}, so GPUs are simulated (--device gpu requires real ones)"
            ));
        }
        Ok((Machine::Simulated(simulated), kernels))
    }

    fn load(&self, device: &Device) -> Result<Loaded, Failure> {
        let changes = Overrides {
            world: self.ranks.map(|ranks| (ranks, "--ranks")),
            resize: true,
            default: Some(DEFAULT),
        };
        self.sources.load(device, changes)
    }

    /// Checks flags that depend on the machine and on the number of runs.
    fn check_flags(
        &self,
        machine: Machine,
        kernels: usize,
        seeds: &Range<u64>,
    ) -> Result<(), Failure> {
        let is_traced = self.trace.is_some() || self.timeline.is_some();
        if machine == Machine::Gpus && (is_traced || self.sms.is_some() || self.skew.is_some()) {
            return Err(Failure::Usage(
                "--sms, --skew, --trace and --timeline are for simulated GPUs; add --device sim",
            ));
        }
        if is_traced && (kernels, seeds.end - seeds.start) != (1, 1) {
            return Err(Failure::Usage(
                "--trace and --timeline are for a single run; give one kernel, and one --seed instead of --seeds",
            ));
        }
        Ok(())
    }

    /// The number of concurrent jobs of a kernel. An error if this host does not have the memory for one.
    fn concurrent_jobs(
        &self,
        kernel: &Kernel,
        plan: &KernelPlan,
        machine: Machine,
        seeds: &Range<u64>,
    ) -> Result<usize, Failure> {
        if machine == Machine::Gpus {
            return Ok(1);
        }
        let seeds = usize::try_from(seeds.end - seeds.start).unwrap_or(usize::MAX);
        let wanted = cores().min(MAX_HOSTS).min(seeds);
        host_memory::jobs_that_fit(&kernel.label, plan, self.calls, wanted)
    }

    /// Runs one kernel with all seeds and passes the outcomes to `done`, in the order of seeds. Stops early if the
    /// other seeds would fail in the same way.
    fn run_seeds(
        &self,
        about: &KernelRun,
        seeds: Range<u64>,
        mut done: impl FnMut(&Outcome) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let concurrent_jobs =
            self.concurrent_jobs(about.kernel, about.plan, about.machine, &seeds)?;
        let world = about.plan.spec.world() as usize;
        let (next, end) = (AtomicU64::new(seeds.start), AtomicU64::new(seeds.end));
        let (sender, outcomes) = mpsc::channel::<Result<Outcome, Failure>>();
        thread::scope(|scope| {
            for _ in 0..concurrent_jobs {
                let sender = sender.clone();
                let (next, end) = (&next, &end);
                scope.spawn(move || {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= end.load(Ordering::Relaxed) {
                            break;
                        }
                        let outcome = self.network.transport(seed).map(|transport| {
                            Job {
                                config: about.kernel.spec.config(),
                                plan: about.plan,
                                machine: about.machine,
                                seed,
                                calls: self.calls,
                                threads: cores() / (concurrent_jobs * world),
                                transport,
                            }
                            .run()
                        });
                        if sender.send(outcome).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let mut early = BTreeMap::new();
            let mut wanted = seeds.start;
            for outcome in outcomes {
                let outcome = outcome?;
                early.insert(outcome.seed, outcome);
                while let Some(outcome) = early.remove(&wanted) {
                    wanted += 1;
                    let result = done(&outcome);
                    if result.is_err() || report::is_same_for_all_seeds(&outcome) {
                        end.store(0, Ordering::Relaxed);
                        return result;
                    }
                }
            }
            Ok(())
        })
    }

    /// Writes the files of `--trace` and `--timeline`.
    fn write_timeline(&self, outcome: &Outcome) -> Result<(), Failure> {
        if let Some(path) = &self.timeline {
            write(path, &outcome.timeline)?;
        }
        if let Some(path) = &self.trace {
            let text = trace::readable(&outcome.timeline).map_err(|error| Failure::Write {
                path: path.clone(),
                source: error.into(),
            })?;
            write(path, &text)?;
        }
        Ok(())
    }
}

/// The number of CPU cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|source| Failure::Write {
        path: path.to_owned(),
        source,
    })
}

/// Parses a range of seeds, such as `3..20`.
fn parse_seeds(text: &str) -> Result<Range<u64>, &'static str> {
    let help = "write the first seed and the one after the last, as in 0..100";
    let (start, end) = text.split_once("..").ok_or(help)?;
    let number = |text: &str| {
        let number = text.parse().ok().filter(|number| *number <= MAX_SEED);
        number.ok_or(help)
    };
    let seeds = number(start)?..number(end)?;
    if seeds.is_empty() {
        return Err("the range is empty; the second number must be larger than the first");
    }
    Ok(seeds)
}

/// A seed that differs from run to run and is short enough to type.
pub fn seed_from_clock() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |time| time.as_micros() as u64 % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::parse_seeds;

    #[test]
    fn ranges_of_seeds() {
        assert_eq!(parse_seeds("3..20"), Ok(3..20));
        for wrong in [
            "",
            "3",
            "3..",
            "..4",
            "4..4",
            "5..4",
            "-1..4",
            "1..=4",
            "0..18446744073709551615",
        ] {
            assert!(parse_seeds(wrong).is_err(), "{wrong}");
        }
    }
}
