//! `mkernel-gen nic-check`: an acceptance test of NICs and networks, by puts between host memory of all ranks.

mod args;
mod bytes;
mod children;
mod job;
mod killed;
mod load;
mod manual;
mod outcome;
mod times;
mod traffic;

use super::failure::Failure;
use super::output::{print, print_json};
use args::CheckName;
pub use args::NicCheck;
use clap::ValueEnum;
use job::Job;
use mkernel::network::Transport;
use mkernel::{Communicator, Error};
pub use outcome::CheckLine;
use outcome::{Outcome, State};
use std::thread;

/// A check of a rank. All ranks run it at the same time. Ranks that have nothing to measure return no outcome.
type Check = fn(&Job<'_>) -> Result<Option<Outcome>, Error>;

/// The function of a check.
fn function(name: CheckName) -> Check {
    match name {
        CheckName::Rails => bytes::rails,
        CheckName::Poison => bytes::poison,
        CheckName::GpuMemory => bytes::gpu_memory,
        CheckName::Rates => times::rates,
        CheckName::Idle => times::idle,
        CheckName::Forks => bytes::forks,
        CheckName::Memlock => children::memlock,
        CheckName::Nofile => children::nofile,
        CheckName::KilledRank => killed::killed,
    }
}

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

    fn on_rank(
        &self,
        ranks: &Communicator,
        transport: &Transport,
        json: bool,
    ) -> Result<(), Failure> {
        let job = Job::new(ranks, self, transport);
        let (mut ran, mut failed) = (0, 0);
        for name in CheckName::value_variants() {
            if !self.checks.is_empty() && !self.checks.contains(name) {
                continue;
            }
            let outcome = outcome(&job, function(*name)).map_err(Failure::Connect)?;
            ran += 1;
            failed += u64::from(outcome.state == State::Fail);
            if ranks.rank() == 0 {
                show(&name.text(), &outcome, json)?;
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
