//! Runs a job: several calls in a row on all ranks, with a thread for each rank.

use super::call_memory::CallMemory;
use super::inputs::Inputs;
use super::operators::{expected, inputs, other_batch};
use super::other_batch::OtherBatch;
use super::routing::TokenLoad;
use super::verdict::{Results, Verdict};
use crate::cli::machine::Machine;
use mkernel::{Communicator, Error, KernelConfig, KernelPlan, Op, Operator, network::Transport};
use mkernel_measure::Failure;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A kernel with everything that a run of it needs.
pub struct Job<'a> {
    pub config: &'a KernelConfig,
    /// A plan that gives sizes and operands. The runtime makes its own plan for the GPUs that it finds.
    pub plan: &'a KernelPlan,
    pub machine: Machine,
    /// The tokens of operators for experts.
    pub load: TokenLoad,
    pub seed: u64,
    /// The number of calls, each with new data. Another call repeats the first.
    pub calls: u32,
    /// Threads that each rank may use for its reference.
    pub threads: usize,
    /// The transport between nodes, if there are several. The communicator of a launched process has its own.
    pub transport: Transport,
    /// The communicator of this process, if other processes have the other ranks.
    pub launched: Option<&'a Communicator>,
}

/// The result of a run.
pub struct Outcome {
    pub seed: u64,
    pub time: Duration,
    pub result: Result<Completed, Vec<RankFailure>>,
    /// The timeline as JSON for Perfetto, or an empty text if none was recorded.
    pub timeline: String,
}

/// The results of ranks that have completed all calls.
#[derive(Debug)]
pub struct Completed {
    pub plan: KernelPlan,
    pub verdict: Verdict,
    /// Whether a repeated call had bitwise the same results on every rank.
    pub repeats: bool,
    /// Whether rows of the first call had bitwise the same results in another batch. `None` if they were not computed again.
    pub is_batch_invariant: Option<bool>,
}

/// The error of a rank, or of the whole job if there is no rank.
#[derive(Debug)]
pub struct RankFailure {
    pub rank: Option<u32>,
    pub error: RankError,
}

#[derive(Debug, thiserror::Error)]
pub enum RankError {
    #[error(transparent)]
    Runtime(#[from] Error),
    #[error("its thread panicked; this is a defect of mkernel, please report it")]
    Panicked,
    #[error("the kernel cannot be timed: {0}")]
    Timing(Failure),
    #[error("there is no plan for the GPUs of this host")]
    NoPlan,
    #[error("there is no reference for {0}; this is a defect of mkernel-gen, please report it")]
    NoReference(Op),
}

impl From<Failure> for RankError {
    fn from(failure: Failure) -> Self {
        match failure.downcast::<Error>() {
            Ok(error) => Self::Runtime(*error),
            Err(other) => Self::Timing(other),
        }
    }
}

impl Outcome {
    /// Whether all elements are right and a repeated call had the same results.
    pub fn is_right(&self) -> bool {
        let is_right = |ran: &Completed| {
            ran.verdict.wrong == 0 && ran.repeats && ran.is_batch_invariant != Some(false)
        };
        self.result.as_ref().is_ok_and(is_right)
    }
}

impl Job<'_> {
    /// Runs the job.
    pub fn run(&self) -> Outcome {
        let started = Instant::now();
        let timeline = Mutex::new(String::new());
        let result = self.run_ranks(&timeline);
        Outcome {
            seed: self.seed,
            time: started.elapsed(),
            result,
            timeline: timeline
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn run_ranks(&self, timeline: &Mutex<String>) -> Result<Completed, Vec<RankFailure>> {
        let calls = self.inputs();
        // Another batch is compared on all ranks together.
        let first = calls.first().filter(|_| self.launched.is_none());
        let other = first.and_then(|first| other_batch(self.config, self.plan, first));
        let results = self.on_ranks(|ranks| {
            let result = self.run_rank(ranks, &calls, other.as_ref());
            if let Some(events) = ranks.timeline() {
                // The timeline of the last rank to end has the most events.
                *timeline.lock().unwrap_or_else(PoisonError::into_inner) = events;
            }
            result
        });
        let (mut first, mut found, mut completed) = (Vec::new(), Vec::new(), Vec::new());
        for result in results? {
            completed.push(result.map(|(ran, batches)| {
                if let Some([of_first, of_other]) = batches {
                    first.push(of_first);
                    found.push(of_other);
                }
                ran
            }));
        }
        let first_rank = self.launched.map_or(0, Communicator::rank);
        let mut ran = merge_from(first_rank, completed)?;
        ran.is_batch_invariant = other.map(|other| {
            let (first, found): (Vec<_>, Vec<_>) = first.iter().zip(&found).unzip();
            other.agrees(&first, &found)
        });
        Ok(ran)
    }

    /// The inputs of each call.
    pub fn inputs(&self) -> Vec<Inputs> {
        let calls = 0..self.calls;
        calls
            .map(|call| inputs(self.plan, self.load, self.seed, call))
            .collect()
    }

    /// Calls `run` on all ranks of this process at the same time and returns what it returns, by rank.
    pub fn on_ranks<T: Send>(
        &self,
        run: impl Fn(&Communicator) -> Result<T, RankError> + Sync,
    ) -> Result<Vec<Result<T, RankError>>, Vec<RankFailure>> {
        if let Some(ranks) = self.launched {
            return Ok(vec![run(ranks)]);
        }
        let world = self.plan.spec.world();
        let whole = |error: Error| RankFailure {
            rank: None,
            error: error.into(),
        };
        let communicators = self.machine.ranks(world, self.seed);
        let communicators = communicators.map_err(|error| vec![whole(error)])?;
        Ok(thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> = communicators
                .into_iter()
                .map(|ranks| scope.spawn(move || run(&ranks)))
                .collect();
            let results = threads.into_iter().map(|thread| thread.join());
            results
                .map(|result| result.unwrap_or(Err(RankError::Panicked)))
                .collect()
        }))
    }

    /// Runs all calls, and the other batch if there is one. Returns the results of the first call and of the other batch, too.
    fn run_rank(
        &self,
        ranks: &Communicator,
        calls: &[Inputs],
        other: Option<&OtherBatch>,
    ) -> Result<(Completed, Option<[Results; 2]>), RankError> {
        let (plan, mut results) = self.results(ranks, calls)?;
        let ran = self.judged(ranks.rank(), plan, calls, &results)?;
        let Some(other) = other else {
            return Ok((ran, None));
        };
        let operator = ranks.prepare(other.plan.spec.config(), other.plan.shape())?;
        let mut found = self.results_of(ranks, &operator, std::slice::from_ref(&other.inputs))?;
        Ok((ran, Some([results.swap_remove(0), found.swap_remove(0)])))
    }

    /// Runs all calls, and the first call again. Returns the plan of the kernel that ran, and the results of each call.
    pub fn results(
        &self,
        ranks: &Communicator,
        calls: &[Inputs],
    ) -> Result<(KernelPlan, Vec<Results>), Error> {
        if self.launched.is_none() {
            ranks.set_transport(self.transport.clone());
        }
        let operator = ranks.prepare(self.config, self.plan.shape())?;
        tracing::info!(
            rank = ranks.rank(),
            operator = operator.plan().id,
            "prepared"
        );
        let results = self.results_of(ranks, &operator, calls)?;
        log_stats(ranks, &operator);
        Ok((operator.plan().clone(), results))
    }

    /// Compares the results of all calls of `rank` with the reference.
    pub fn judged(
        &self,
        rank: u32,
        plan: KernelPlan,
        calls: &[Inputs],
        results: &[Results],
    ) -> Result<Completed, RankError> {
        let mut verdict = Verdict::default();
        for ((call, inputs), found) in (0..).zip(calls).zip(results) {
            let expected = expected(self.plan, inputs, rank, self.threads)
                .ok_or(RankError::NoReference(self.plan.spec.op()))?;
            for ((operand, found), expected) in found.iter().zip(&expected) {
                verdict.add(&Verdict::of(found, expected, (call, rank, *operand)));
            }
        }
        let (first, last) = (results.first(), results.last());
        Ok(Completed {
            plan,
            verdict,
            repeats: first
                .zip(last)
                .is_some_and(|(first, last)| same_bits(first, last)),
            is_batch_invariant: None,
        })
    }

    fn results_of(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        calls: &[Inputs],
    ) -> Result<Vec<Results>, Error> {
        let stream = ranks.default_stream();
        let calls = calls.iter().chain(calls.first());
        let on_gpu = calls.map(|call| CallMemory::new(ranks, &stream, call));
        let mut on_gpu = on_gpu.collect::<Result<Vec<_>, _>>()?;
        ranks.barrier()?;
        for call in &mut on_gpu {
            call.launch(operator, &stream)?;
        }
        ranks.synchronize(&stream)?;
        on_gpu.iter().map(|call| call.download(&stream)).collect()
    }
}

/// Logs what a rank uses, and what it has sent.
fn log_stats(ranks: &Communicator, operator: &Operator) {
    let rank = ranks.rank();
    let stats = ranks.stats();
    let workspace_bytes = operator.plan().workspace_bytes();
    tracing::debug!(rank, workspace_bytes, "heap: {}", stats.heap);
    for fabric in &stats.fabrics {
        tracing::debug!(rank, "fabric: {fabric}");
    }
}

/// Whether results are bitwise equal. Unlike with `==`, a NaN equals itself.
fn same_bits(first: &Results, second: &Results) -> bool {
    let bits = |results: &Results| -> Vec<u32> {
        let values = results.iter().flat_map(|(_, values)| values);
        values.map(|value| value.to_bits()).collect()
    };
    bits(first) == bits(second)
}

/// Combines the results of all ranks, or returns the errors of the ranks that failed.
pub fn merge(results: Vec<Result<Completed, RankError>>) -> Result<Completed, Vec<RankFailure>> {
    merge_from(0, results)
}

fn merge_from(
    first_rank: u32,
    results: Vec<Result<Completed, RankError>>,
) -> Result<Completed, Vec<RankFailure>> {
    let mut whole: Option<Completed> = None;
    let mut failed = Vec::new();
    for (rank, result) in (first_rank..).zip(results) {
        match (result, &mut whole) {
            (Ok(ran), None) => whole = Some(ran),
            (Ok(ran), Some(whole)) => {
                whole.verdict.add(&ran.verdict);
                whole.repeats &= ran.repeats;
            }
            (Err(error), _) => failed.push(RankFailure {
                rank: Some(rank),
                error,
            }),
        }
    }
    match whole {
        Some(whole) if failed.is_empty() => Ok(whole),
        _ => Err(failed),
    }
}
