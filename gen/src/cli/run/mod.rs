//! `mkernel-gen run`: runs operators on GPUs or simulated GPUs and checks every element of their results.

mod attention;
pub mod call_memory;
mod collective;
mod combine;
mod dispatch;
mod effort;
pub mod exit_code;
mod gemm;
mod gemm_combine;
mod host_memory;
pub mod inputs;
mod junit;
mod kernel_run;
mod machine_flags;
mod memory;
mod moe_layer;
mod operators;
mod other_batch;
pub mod outcome_line;
mod quantised;
mod queue;
#[cfg(test)]
mod random_runs;
pub mod ranks;
mod reference;
pub mod report;
mod repro_command;
mod router;
pub mod routing;
mod runs;
mod scratch;
mod summary;
mod tensor;
mod trace;
pub mod verdict;

use super::Failure;
use super::environment;
use super::fabric_test::Network;
use super::files::write_text;
use super::input::{Kernel, Sources};
use super::machine::{Machine, cores};
use crate::cli::output::print_note;
use host_memory::Memory;
use kernel_run::{KernelRun, chosen_by};
pub use machine_flags::MachineFlags;
use mkernel::{Communicator, KernelPlan};
pub use outcome_line::OutcomeLine;
use queue::Queue;
use ranks::Outcome;
use report::Report;
use runs::Runs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::SystemTime;
pub use summary::Summary;

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
    #[command(flatten)]
    machine: MachineFlags,
    /// Number of calls, each with new data; another call repeats the first. If calls give the rows, those after the
    /// first have a random number of rows
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    calls: u32,
    /// Seed of the data, and of the order of events on simulated GPUs [default: MKERNEL_SIM_SEED, else a new seed
    /// each time]
    #[arg(long, value_name = "NUMBER", conflicts_with = "seeds", allow_negative_numbers = true, value_parser = parse_seed)]
    seed: Option<u64>,
    /// Run once for each seed from A to B - 1
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    seeds: Option<Range<u64>>,
    /// Start no other run after a run that is not right
    #[arg(long)]
    fail_fast: bool,
    /// Run one rank of a job of several processes, as a launcher starts them. Each host is a node, and each process reports on
    /// its own rank
    #[arg(long, conflicts_with_all = ["device", "ranks", "sms", "skew", "jobs", "trace"])]
    from_env: bool,
    /// Write the outcomes as JUnit XML, which CI systems show: a suite for each kernel, a test for each seed
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write a line for each event of the simulator: waits, and the last 4000 changes of flags. mkernel-gen trace makes a
    /// timeline
    #[arg(long, value_name = "FILE", help_heading = "Simulated GPUs")]
    trace: Option<PathBuf>,
    /// Run this many kernels and seeds at a time [default: one per core, at most 8]
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=MAX_HOSTS as i64), help_heading = "Simulated GPUs")]
    jobs: Option<u8>,
    #[command(flatten)]
    network: Network,
}

impl Run {
    /// Runs every kernel with every seed. Runs that fail do not stop the others, unless `--fail-fast` is given.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let launched = self.from_env.then(Communicator::from_env).transpose();
        let launched = launched.map_err(Failure::Connect)?;
        let (machine, kernels) = match &launched {
            Some(ranks) => {
                if self.network.is_given() {
                    ranks.set_transport(self.network.transport(0)?);
                }
                self.machine.of_launched(&self.sources, ranks)?
            }
            None => self.machine.choose(&self.sources, self.trace.is_some())?,
        };
        let seeds = self.seeds()?;
        self.check_flags(machine, kernels.len(), &seeds)?;
        self.check_network(&kernels)?;
        let kernels: Vec<_> = kernels
            .iter()
            .map(|(kernel, plan)| KernelRun {
                kernel,
                plan,
                machine,
                calls: self.calls,
                chosen_by: chosen_by(kernel, &kernels),
                rank: launched.as_ref().map(Communicator::rank),
            })
            .collect();
        let memory = Memory::of(&kernels)?;
        let total = (seeds.end - seeds.start).saturating_mul(kernels.len() as u64);
        let jobs = match launched {
            Some(_) => 1,
            None => self.concurrent_jobs(machine, total),
        };
        if machine != Machine::Gpus {
            effort::warn_if_long(&kernels, seeds.end - seeds.start, jobs);
        }
        let mut report = Report::new((json, self.junit.as_deref()), total);
        let queue = Queue::new(seeds, &memory.needed_bytes, memory.available_bytes);
        let runs = Runs {
            network: &self.network,
            fail_fast: self.fail_fast,
            write: &|outcome| self.write_trace(outcome),
            kernels: &kernels,
            queue: &queue,
            jobs,
            launched: launched.as_ref(),
        };
        runs.run(&mut report)?;
        // Rank 0 leaves last: the other ranks are connected to it. Ranks that have failed have left.
        if let Some(ranks) = &launched {
            let _ = ranks.barrier();
        }
        if machine == Machine::Gpus && report.machine_is_at_fault() {
            print_note("use --device sim to run without a GPU");
        }
        report.finish()
    }

    fn seeds(&self) -> Result<Range<u64>, Failure> {
        if let Some(seeds) = &self.seeds {
            return Ok(seeds.clone());
        }
        let one = seed_or_environment(self.seed)?;
        Ok(one..one + 1)
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

    /// Checks flags that depend on the machine and on the number of runs.
    fn check_flags(
        &self,
        machine: Machine,
        kernels: usize,
        seeds: &Range<u64>,
    ) -> Result<(), Failure> {
        let is_traced = self.trace.is_some();
        let is_simulated = self.machine.is_simulated() || self.jobs.is_some();
        if machine == Machine::Gpus && (is_traced || is_simulated) {
            return Err(Failure::Usage(
                "--sms, --skew, --jobs and --trace are for simulated GPUs; add --device sim",
            ));
        }
        if is_traced && (kernels, seeds.end - seeds.start) != (1, 1) {
            return Err(Failure::Usage(
                "--trace is for a single run; give one kernel, and one --seed instead of --seeds",
            ));
        }
        Ok(())
    }

    /// The number of runs at a time, for which there may not be enough memory.
    fn concurrent_jobs(&self, machine: Machine, total: u64) -> usize {
        let wanted = match machine {
            Machine::Gpus => 1,
            Machine::Simulated(_) => self.jobs.map_or(cores().min(MAX_HOSTS), usize::from),
        };
        wanted.min(usize::try_from(total).unwrap_or(usize::MAX))
    }

    /// Writes the file of `--trace`.
    fn write_trace(&self, outcome: &Outcome) -> Result<(), Failure> {
        if let Some(path) = &self.trace {
            let text = trace::readable(&outcome.timeline).map_err(|error| Failure::Write {
                path: path.clone(),
                source: error.into(),
            })?;
            write_text(path, &text)?;
        }
        Ok(())
    }
}

/// Parses a seed.
pub fn parse_seed(text: &str) -> Result<u64, String> {
    let seed = text.parse().ok().filter(|seed| *seed < MAX_SEED);
    seed.ok_or_else(|| format!("write an integer from 0 to {}", MAX_SEED - 1))
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

/// The given seed, otherwise the seed of `MKERNEL_SIM_SEED`, otherwise a new seed.
pub fn seed_or_environment(given: Option<u64>) -> Result<u64, Failure> {
    match given {
        Some(seed) => Ok(seed),
        None => Ok(environment::number("MKERNEL_SIM_SEED", 0..=MAX_SEED - 1)?
            .unwrap_or_else(seed_from_clock)),
    }
}

/// A seed that differs from run to run and is short enough to type.
pub fn seed_from_clock() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |time| time.as_micros() as u64 % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::{MAX_SEED, parse_seed, parse_seeds};

    #[test]
    fn seeds() {
        assert_eq!(parse_seed("7"), Ok(7));
        for wrong in ["-1", "", "1.5", "1e3", &MAX_SEED.to_string()] {
            let help = parse_seed(wrong).expect_err("no seed");
            assert_eq!(help, "write an integer from 0 to 9223372036854775807");
        }
    }

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
