//! [`TimedJob`]: runs a kernel on all ranks, checks its result, and times it.

use super::measurement::{Measurement, Rival, Time};
use super::timing::{Settings, Timed, Timing};
use crate::cli::failure::Failure;
use crate::cli::input::Kernel;
use crate::cli::machine::Machine;
use crate::cli::machine::cores;
use crate::cli::output::{Line, print_json, print_stderr};
use crate::cli::run::exit_code::code;
use crate::cli::run::inputs::Inputs;
use crate::cli::run::outcome_line::{RunError, problems};
pub use crate::cli::run::ranks::Outcome;
use crate::cli::run::ranks::{Completed, Job, RankError, merge};
use crate::cli::run::routing::TokenLoad;
use crate::cli::run::verdict::Verdict;
use mkernel::{Communicator, KernelPlan, network::Transport};
use mkernel_measure::agreed;
use rustix::system::uname;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Instant;

/// A kernel of one size with everything that its measurement needs.
pub struct TimedJob<'a> {
    pub kernel: &'a Kernel,
    /// A plan that gives sizes and operands. The runtime makes its own plan for the GPUs that it finds.
    pub plan: &'a KernelPlan,
    pub seed: u64,
    pub transport: Transport,
    /// Whether the result is compared with a reference first.
    pub checks: bool,
    pub settings: Settings<'a>,
}

impl TimedJob<'_> {
    /// Checks and times the kernel. An error if a rank fails or a result is wrong.
    pub fn run(&self) -> Result<Measurement, Box<Outcome>> {
        let started = Instant::now();
        let job = Job {
            config: self.kernel.spec.config(),
            plan: self.plan,
            machine: Machine::Gpus,
            load: TokenLoad::Full,
            seed: self.seed,
            calls: 1,
            threads: (cores() / self.plan.spec.world() as usize).max(1),
            transport: self.transport.clone(),
            launched: None,
        };
        let mut timed = None;
        let calls = job.inputs();
        let results = job.on_ranks(|ranks| self.run_rank(ranks, &job, &calls));
        let result = results.and_then(|results| {
            let completed = results.into_iter().map(|result| {
                let (completed, of_rank) = result?;
                // The times of all ranks are equal: those of the slowest rank.
                timed = timed.take().or(of_rank);
                Ok(completed)
            });
            merge(completed.collect())
        });
        let measured = match (&result, timed) {
            (Ok(completed), Some(timed)) => self.measurement(&completed.plan, timed),
            _ => None,
        };
        measured.ok_or_else(|| {
            Box::new(Outcome {
                seed: self.seed,
                time: started.elapsed(),
                result,
                timeline: String::new(),
            })
        })
    }

    /// Checks and times the kernel on one rank. There are no times if the result of a rank is wrong.
    fn run_rank(
        &self,
        ranks: &Communicator,
        job: &Job,
        calls: &[Inputs],
    ) -> Result<(Completed, Option<Timed>), RankError> {
        ranks.set_transport(self.transport.clone());
        let operator = ranks.prepare(job.config, self.plan.shape())?;
        let completed = match self.checks {
            true => {
                let (plan, results) = job.results(ranks, calls)?;
                job.judged(ranks.rank(), plan, calls, &results)?
            }
            false => Completed {
                plan: operator.plan().clone(),
                verdict: Verdict::default(),
                repeats: true,
                is_batch_invariant: None,
            },
        };
        let is_right = completed.verdict.wrong == 0 && completed.repeats;
        let own = is_right.then_some(()).ok_or("the result is wrong".into());
        let (Ok(()), [inputs, ..]) = (agreed(ranks, own)?, calls) else {
            return Ok((completed, None));
        };
        let timing = Timing::new(ranks, operator.plan(), inputs)?;
        let timed = timing.run(&operator, self.settings)?;
        // Memory may be freed only while no kernel of any rank runs.
        ranks.barrier()?;
        Ok((completed, Some(timed)))
    }

    /// The result with everything that a report shows. `None` without rounds.
    fn measurement(&self, plan: &KernelPlan, timed: Timed) -> Option<Measurement> {
        let body = plan.body();
        let shape = plan.shape();
        let dims = plan.spec.config().problem.dims().into_iter();
        let sizes = dims.filter_map(|(field, _)| {
            let size = shape.size(field)?;
            Some((field.name().to_owned(), size))
        });
        let rivals = timed.rivals.into_iter().filter_map(|(name, rounds)| {
            Some(Rival {
                name,
                time: Time::of(&rounds)?,
            })
        });
        let dtype = plan.operands().first().map(|operand| operand.dtype.name());
        Some(Measurement {
            host: uname().nodename().to_string_lossy().into_owned(),
            gpu: plan.device.name.clone(),
            label: self.kernel.label.clone(),
            op: plan.spec.op().name().to_owned(),
            dtype: dtype.unwrap_or_default().to_owned(),
            ranks: plan.spec.world(),
            nodes: plan.spec.topology().nodes,
            sizes: sizes.collect(),
            id: plan.id.clone(),
            checked: self.checks,
            rounds: self.settings.rounds,
            calls: timed.calls,
            copies: timed.copies,
            sm_mhz: timed.sm_mhz,
            time: Time::of(&timed.kernel)?,
            bound_us: body.bound.us(),
            bound_reason: body.bound.reason().to_owned(),
            estimate_us: body.estimate_us,
            rivals: rivals.collect(),
            notes: timed.notes,
        })
    }
}

/// A kernel that failed, as a JSON object.
#[derive(Serialize, JsonSchema)]
pub struct FailedLine<'a> {
    ok: bool,
    label: &'a str,
    place: &'a str,
    seed: u64,
    problems: Vec<RunError>,
}

impl Line for FailedLine<'_> {
    const KIND: &'static str = "timing failure";
}

/// The number of kernels that failed, and the exit code.
#[derive(Default)]
pub struct Failed {
    count: u64,
    code: u8,
}

impl Failed {
    /// Prints why a kernel failed.
    pub fn add(&mut self, kernel: &Kernel, outcome: &Outcome, json: bool) -> Result<(), Failure> {
        self.count += 1;
        // A kernel without times has failed, too.
        self.code = self.code.max(code(outcome)).max(1);
        let (label, seed) = (&kernel.label, outcome.seed);
        let problems = problems(outcome);
        for RunError { ranks, reason } in &problems {
            let ranks: Vec<_> = ranks.iter().map(u32::to_string).collect();
            let ranks = match ranks.as_slice() {
                [] => "all ranks".to_owned(),
                [one] => format!("rank {one}"),
                several => format!("ranks {}", several.join(", ")),
            };
            print_stderr(&format!("{label}: {ranks}: {reason}"));
        }
        print_stderr(&format!("{label}: failed with --seed {seed}"));
        match json {
            true => print_json(&FailedLine {
                ok: false,
                label,
                place: &kernel.location,
                seed,
                problems,
            }),
            false => Ok(()),
        }
    }

    /// Fails if a kernel has failed.
    pub fn finish(&self, ran: u64) -> Result<(), Failure> {
        match self.count {
            0 => Ok(()),
            failed => Err(Failure::Runs {
                failed,
                ran,
                code: self.code,
            }),
        }
    }
}
