//! `mkernel-gen tune`: measures which choices of the planner are fastest on the GPUs of this host, and writes them to a file.

mod candidate;
mod report;
mod search;

use super::bench::Failed;
use super::fabric_test::Network;
use super::failure::Failure;
use super::files::read_text;
use super::input::Kernel;
use super::machine::Machine;
use super::output::{print_json, print_note};
use super::run::ranks::Outcome;
use super::run::{parse_seed, seed_from_clock};
use super::timed_kernels::TimedKernels;
use mkernel::{KernelConfig, KernelPlan, Tuned};
use mkernel_declare::SpannedDiagnostic;
use mkernel_measure::TimeLimit;
pub use report::TunedLine;
use search::{Found, Search};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The first lines of a file.
const HEADER: &str = "\
# Choices of the planner that `mkernel-gen tune` measured. Times are µs of a call on the slowest rank, medians on random data.

";

/// Arguments of `mkernel-gen tune`.
#[derive(Debug, clap::Args)]
pub struct Tune {
    #[command(flatten)]
    kernels: TimedKernels,
    /// The file to which kernels are added, one for each kind of GPU; kernels that it already has are left out
    #[arg(long, value_name = "FILE", default_value = "tuned.toml")]
    out: PathBuf,
    /// Measure again what the file already has, its choices being among the candidates; with --candidates 2, check that they are
    /// still faster than the planner's
    #[arg(long)]
    again: bool,
    /// The most kernels that are compared at a time, the planner's own choice included
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=1000))]
    candidates: u16,
    /// Seconds after which no further kernel is begun; the next call with the same file continues [default: no limit]
    #[arg(long, value_name = "SECONDS")]
    budget_s: Option<u64>,
    /// Rounds of the last comparison; one more warms up
    #[arg(long, value_name = "COUNT", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seed of the data [default: a new seed each time]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = parse_seed)]
    seed: Option<u64>,
    /// Do not check results, whose references are computed by the CPU and take long for large products
    #[arg(long)]
    no_check: bool,
    /// Seconds that a kernel may take, after which the process ends with code 124
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit_s: u64,
    #[command(flatten)]
    network: Network,
}

impl Tune {
    /// Tunes every kernel. The file is written after each kernel, so an interruption loses one kernel at most.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let kernels = self.kernels.load()?;
        check(&kernels)?;
        let mut tuned = self.read()?;
        let seed = self.seed.unwrap_or_else(seed_from_clock);
        let started = Instant::now();
        let (mut lines, mut failed, mut begun) = (Vec::new(), Failed::default(), 0);
        for (number, (kernel, plan)) in (1..).zip(&kernels) {
            let label = &kernel.label;
            let known = report::known(&tuned, kernel).cloned();
            if !self.again && known.is_some() {
                print_note(&format!("{label}: already in {}", self.out.display()));
                continue;
            }
            if self
                .budget_s
                .is_some_and(|s| started.elapsed() >= Duration::from_secs(s))
            {
                let left = kernels.len() + 1 - number;
                print_note(&format!(
                    "the budget is spent; run the command again for the last {left} of {} kernels",
                    kernels.len()
                ));
                break;
            }
            print_note(&format!("kernel {number} of {}: {label}", kernels.len()));
            begun += 1;
            match self.search((kernel, plan), known, seed)? {
                Ok(found) => {
                    let line = TunedLine::new(kernel, &found);
                    tuned.replace(found.tuned);
                    write(&self.out, &tuned)?;
                    match json {
                        true => print_json(&line)?,
                        false => lines.push(line),
                    }
                }
                Err(outcome) => failed.add(kernel, &outcome, json)?,
            }
        }
        report::print_table(&lines)?;
        failed.finish(begun)
    }

    fn search(
        &self,
        (kernel, plan): (&Kernel, &KernelPlan),
        known: Option<KernelConfig>,
        seed: u64,
    ) -> Result<Result<Found, Box<Outcome>>, Failure> {
        let limit = Duration::from_secs(self.limit_s);
        let _limit = TimeLimit::start("the search for a kernel (see --limit-s)", limit);
        let search = Search {
            kernel,
            plan,
            known,
            machine: Machine::Gpus,
            times: |timing, operators, rounds| timing.of_operators(operators, rounds),
            transport: self.network.transport(seed)?,
            seed,
            candidates: self.candidates.into(),
            rounds: self.rounds,
            checks: !self.no_check,
        };
        Ok(search.run())
    }

    /// The choices that the file has; none if there is no file.
    fn read(&self) -> Result<Tuned, Failure> {
        if !self.out.exists() {
            return Ok(Tuned::default());
        }
        let text = read_text(&self.out)?;
        Tuned::read(&text).map_err(|source| Failure::NotTuned {
            path: self.out.clone(),
            source,
        })
    }
}

/// Reports the kernels whose choices cannot be measured.
fn check(kernels: &[(Kernel, KernelPlan)]) -> Result<(), Failure> {
    let mistake = |(kernel, plan): &(Kernel, KernelPlan)| {
        let config = kernel.spec.config();
        let (reason, help) = if plan.max_rows().is_some() {
            (
                "each call gives its number of rows, so times of one number do not decide",
                "give the rows, as in --m 256",
            )
        } else if config.problem.without_choices() != config.problem {
            (
                "options fix choices that tune is to make",
                "remove the options of the table [kernel.tuning], protocol and shots",
            )
        } else if config.candidates().is_empty() {
            (
                "the operator leaves no choices to the planner",
                "leave the kernel out",
            )
        } else {
            return None;
        };
        Some(SpannedDiagnostic {
            span: kernel.location.clone(),
            reason: format!("{}: {reason}", kernel.label),
            help: help.to_owned(),
        })
    };
    let mistakes: Vec<_> = kernels.iter().filter_map(mistake).collect();
    match mistakes.is_empty() {
        true => Ok(()),
        false => Err(Failure::Diagnostics(mistakes)),
    }
}

/// Replaces the file in one step, so that an interruption leaves the old file or the new one.
fn write(path: &Path, tuned: &Tuned) -> Result<(), Failure> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let text = tuned.text().map_err(std::io::Error::other);
    let written = text.and_then(|text| {
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(HEADER.as_bytes())?;
        file.write_all(text.as_bytes())?;
        file.persist(path).map_err(|error| error.error)
    });
    written.map(|_| ()).map_err(|source| Failure::Write {
        path: path.to_owned(),
        source,
    })
}
