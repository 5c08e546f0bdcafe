//! `mkernel-gen launch`: starts a program once for each rank on this host, and ends all ranks when one fails.

mod output;
mod rank;

use super::environment;
use super::failure::Failure;
use super::machine::{self, DeviceChoice};
use super::signals::{Watch, end_by};
use output::Forward;
pub use output::OutputLine;
use rank::{Place, Rank, exit_code, how};
use rustix::process::Signal;
use std::ffi::OsString;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The time between two looks at the ranks.
const POLL: Duration = Duration::from_millis(10);

/// Arguments of `mkernel-gen launch`.
#[derive(Debug, clap::Args)]
pub struct Launch {
    /// Number of ranks
    #[arg(long, visible_alias = "nproc-per-node", value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=8))]
    nproc: u8,
    /// Port at which ranks meet (MASTER_PORT) [default: a free port]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Seconds between SIGTERM and SIGKILL when ranks are ended
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace_s: u32,
    /// Make each rank a host of its own (MKERNEL_HOST_ID), so that ranks on simulated GPUs can meet; operators need a
    /// transport between processes, such as rc
    #[arg(long)]
    as_hosts: bool,
    /// The program with its arguments; it reads no standard input
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    command: Vec<OsString>,
}

/// The ranks that have not ended, and the time at which they are killed.
struct Job {
    ranks: Vec<Rank>,
    grace: Duration,
    kill_at: Option<Instant>,
    failure: Option<Failure>,
}

impl Launch {
    /// Runs all ranks. Fails with the exit code of the first rank that failed.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        self.check_device()?;
        let (sender, signals) = mpsc::channel();
        let _watch = Watch::new(move |signal| {
            let _ = sender.send(signal);
        })?;
        let forward = Forward::new(json);
        let mut job = Job {
            ranks: Vec::new(),
            grace: Duration::from_secs(self.grace_s.into()),
            kill_at: None,
            failure: None,
        };
        let place =
            Place::new(self.nproc.into(), self.port, self.as_hosts).map_err(Failure::Rendezvous)?;
        for rank in 0..self.nproc.into() {
            match Rank::start(rank, &self.command, &place, &forward) {
                Ok(started) => job.ranks.push(started),
                Err(failure) => {
                    job.fail(failure);
                    break;
                }
            }
        }
        let ended_by = job.wait(&signals);
        forward.finish();
        if let Some(signal) = ended_by {
            end_by(signal);
        }
        job.failure.map_or(Ok(()), Err)
    }

    /// Fails if the ranks could not share the simulated GPUs that the variables choose.
    fn check_device(&self) -> Result<(), Failure> {
        let device = environment::choice("MKERNEL_DEVICE")?.unwrap_or(DeviceChoice::Gpu);
        let simulated = match device {
            DeviceChoice::Sim => true,
            DeviceChoice::Auto => machine::gpus() == 0,
            DeviceChoice::Gpu => false,
        };
        if simulated && self.nproc > 1 && !self.as_hosts {
            return Err(Failure::SimulatedProcesses {
                nproc: self.nproc.into(),
            });
        }
        Ok(())
    }
}

impl Job {
    /// Waits until all ranks have ended. Returns the signal that ended the job, if there is one.
    fn wait(&mut self, signals: &Receiver<i32>) -> Option<i32> {
        let mut ended_by = None;
        while !self.ranks.is_empty() {
            match signals.recv_timeout(POLL) {
                // The second signal kills.
                Ok(_) if ended_by.is_some() => self.signal(Signal::KILL),
                Ok(signal) => {
                    ended_by = Some(signal);
                    self.end_all(Signal::from_named_raw(signal).unwrap_or(Signal::TERM));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if self.kill_at.is_some_and(|time| time <= Instant::now()) {
                self.signal(Signal::KILL);
            }
            self.collect();
        }
        ended_by
    }

    /// Removes the ranks that have ended. The first failure ends the others.
    fn collect(&mut self) {
        let mut failure = None;
        self.ranks.retain_mut(|rank| match rank.try_wait() {
            None => true,
            Some(status) => {
                if !status.success() && failure.is_none() {
                    failure = Some(Failure::Rank {
                        rank: rank.number,
                        how: how(status),
                        code: exit_code(status),
                    });
                }
                false
            }
        });
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
        }
        // Ranks that a signal or an earlier failure ends have their grace.
        if self.kill_at.is_none() {
            self.end_all(Signal::TERM);
        }
    }

    fn end_all(&mut self, signal: Signal) {
        self.kill_at.get_or_insert(Instant::now() + self.grace);
        self.signal(signal);
    }

    fn signal(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
    }
}
