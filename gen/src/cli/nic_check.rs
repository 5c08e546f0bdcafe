//! `mkernel-gen nic-check`: an acceptance test of NICs and networks, by puts between host memory of all ranks.

mod bytes;
mod children;
mod job;
mod killed;
mod manual;
mod outcome;
mod times;
mod traffic;

use super::fabric_test::Network;
use super::failure::Failure;
use super::machine::DeviceChoice;
use super::output::{print, print_json};
use children::Part;
use job::Job;
use mkernel::network::Transport;
use mkernel::{Communicator, Error};
pub use outcome::CheckLine;
use outcome::{Outcome, State};
use std::thread;

/// Arguments of `mkernel-gen nic-check`.
#[derive(Debug, clap::Args)]
pub struct NicCheck {
    /// GPUs of the ranks [default: MKERNEL_DEVICE, else auto]
    #[arg(long, value_enum)]
    device: Option<DeviceChoice>,
    /// Number of ranks, each a node of its own: 2 to 8
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=8))]
    ranks: u32,
    /// Be one rank of a job that torchrun, srun or mpirun has started on several hosts
    #[arg(long, conflicts_with_all = ["device", "ranks"])]
    from_env: bool,
    /// The checks to run [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(CHECKS.map(|(name, _)| name)))]
    checks: Vec<String>,
    /// Puts of each rank to each peer in checks of bytes [default: 2000; on simulated GPUs 40]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(8..))]
    puts: Option<u32>,
    /// Length of the longest put, a multiple of 8 from 8 to 16777216 [default: 16777216; on simulated GPUs 262144]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    most_bytes: Option<u32>,
    /// Puts of a measurement of rates [default: 20000; on simulated GPUs 200]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(10..))]
    messages: Option<u32>,
    /// Longest time in microseconds of a put and its answer after idle time
    #[arg(long, value_name = "NUMBER", default_value_t = 5000)]
    idle_limit_us: u32,
    /// Longest time in seconds until a killed rank is named
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    killed_limit_s: u32,
    /// Seed of sizes and contents
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// The part of a child process of this command
    #[arg(long, hide = true, value_enum)]
    part: Option<Part>,
    #[command(flatten)]
    network: Network,
}

fn parse_bytes(text: &str) -> Result<u32, &'static str> {
    let bytes = text.parse().ok();
    bytes
        .filter(|bytes: &u32| (8..=16 << 20).contains(bytes) && bytes.is_multiple_of(8))
        .ok_or("write a multiple of 8 from 8 to 16777216")
}

/// A check of a rank. All ranks run it at the same time. Ranks that have nothing to measure return no outcome.
type Check = fn(&Job<'_>) -> Result<Option<Outcome>, Error>;

/// All checks. Checks that end processes come last.
const CHECKS: [(&str, Check); 9] = [
    ("rails", bytes::rails),
    ("poison", bytes::poison),
    ("gpu-memory", bytes::gpu_memory),
    ("rates", times::rates),
    ("idle", times::idle),
    ("forks", bytes::forks),
    ("memlock", children::memlock),
    ("nofile", children::nofile),
    ("killed-rank", killed::killed),
];

impl NicCheck {
    /// Runs the checks and prints their outcomes on rank 0. The command fails if a check fails.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let transport = self.network.transport(self.seed)?;
        if let Some(part) = self.part {
            return children::run(part, self, &transport);
        }
        if self.from_env {
            let ranks = Communicator::from_env().map_err(Failure::Connect)?;
            return self.on_rank(&ranks, &transport, json);
        }
        let ranks = super::fabric_test::machine(self.device, self.ranks)?
            .ranks(self.ranks, self.seed)
            .map_err(Failure::Connect)?;
        let results: Vec<Result<(), Failure>> = thread::scope(|scope| {
            let start = |ranks: Communicator| {
                let transport = &transport;
                scope.spawn(move || self.on_rank(&ranks, transport, json))
            };
            let threads: Vec<_> = ranks.into_iter().map(start).collect();
            let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
            let aborted = || Err(Failure::Connect(Error::Aborted { cause: None }));
            joined
                .map(|result| result.unwrap_or_else(|_| aborted()))
                .collect()
        });
        results.into_iter().collect()
    }

    /// The arguments of a command line, for tests.
    #[cfg(test)]
    fn parse(words: &[&str]) -> Self {
        use clap::{Args, FromArgMatches};
        let command = Self::augment_args(clap::Command::new("nic-check"));
        let matches = command.get_matches_from([&["nic-check"], words].concat());
        Self::from_arg_matches(&matches).expect("valid arguments")
    }

    fn on_rank(
        &self,
        ranks: &Communicator,
        transport: &Transport,
        json: bool,
    ) -> Result<(), Failure> {
        let job = Job::new(ranks, self, transport);
        let (mut ran, mut failed) = (0, 0);
        for (name, check) in CHECKS {
            if !self.checks.is_empty() && !self.checks.iter().any(|wanted| wanted == name) {
                continue;
            }
            let outcome = outcome(&job, check).map_err(Failure::Connect)?;
            ran += 1;
            failed += u64::from(outcome.state == State::Fail);
            if ranks.rank() == 0 {
                show(name, &outcome, json)?;
            }
        }
        if ranks.rank() == 0 && self.checks.is_empty() {
            let mut steps = manual::steps().into_iter();
            steps.try_for_each(|(name, step)| show(name, &step, json))?;
        }
        // Rank 0 must leave last.
        ranks.barrier().map_err(Failure::Connect)?;
        match failed {
            0 => Ok(()),
            failed => Err(Failure::Checks { failed, ran }),
        }
    }
}

/// Runs a check on all ranks, and combines their outcomes. An error of the network is a failure of the check.
fn outcome(job: &Job<'_>, check: Check) -> Result<Outcome, Error> {
    let own = check(job).unwrap_or_else(|error| {
        Some(Outcome::fail(
            super::failure::chain(&error),
            "look at the NIC and the peer that the error names; `mkernel-gen doctor` and `mkernel-gen topology` examine this host",
        ))
    });
    let own = serde_json::to_vec(&own).unwrap_or_default();
    let all = job.ranks.all_gather(&own)?;
    let decode = |bytes: &Vec<u8>| serde_json::from_slice(bytes).unwrap_or(None);
    Ok(Outcome::merged(all.iter().map(decode).collect()))
}

fn show(name: &str, outcome: &Outcome, json: bool) -> Result<(), Failure> {
    match json {
        true => print_json(&outcome.line(name)),
        false => print(&outcome.text(name)),
    }
}
