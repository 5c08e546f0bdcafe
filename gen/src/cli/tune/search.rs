//! [`Search`]: finds the fastest choices of one kernel, on all ranks together.

use super::candidate::{Candidate, Known};
use crate::cli::bench::timing::Timing;
use crate::cli::input::Kernel;
use crate::cli::machine::{Machine, cores};
use crate::cli::parallel::in_parallel;
use crate::cli::run::inputs::Inputs;
use crate::cli::run::ranks::{Completed, Job, Outcome, RankError, merge};
use crate::cli::run::routing::TokenLoad;
use crate::cli::run::verdict::Verdict;
use mkernel::network::Transport;
use mkernel::{Communicator, KernelConfig, KernelPlan, Operator, Tuned};
use mkernel_compile::Store;
use mkernel_measure::blocks::median;
use mkernel_spec::plan::{TunedKernel, TunedTimes};
use std::time::{Duration, Instant};

/// The rounds in which candidates are compared, before the fastest are measured again.
const ROUNDS: u32 = 3;
/// The longest time of measured choices, relative to the time of the planner's choices. Medians of one kernel differ by up to 1.2 %.
const MOST_TUNED: f64 = 0.98;
/// The time for which ranks wait for each other while they compile.
const COMPILING: Duration = Duration::from_secs(600);

/// A function that returns the times of operators, by operator and round, equal on all ranks.
pub type Times =
    fn(&Timing<'_>, &[Operator], u32) -> Result<Vec<Vec<f64>>, mkernel_measure::Failure>;

/// The search for the fastest choices of a kernel.
pub struct Search<'a> {
    pub kernel: &'a Kernel,
    /// A plan that gives sizes and operands.
    pub plan: &'a KernelPlan,
    /// The choices of an earlier search, which are a candidate.
    pub known: Option<KernelConfig>,
    pub machine: Machine,
    pub transport: Transport,
    pub seed: u64,
    /// Measures operators: [`Timing::of_operators`] on GPUs.
    pub times: Times,
    /// The most candidates that are compared at a time.
    pub candidates: usize,
    /// The rounds of the last comparison.
    pub rounds: u32,
    /// Whether the result of the fastest kernel is compared with a reference.
    pub checks: bool,
}

/// The result of a search.
pub struct Found {
    pub tuned: TunedKernel,
    /// The number of kernels that were compared.
    pub compared: usize,
}

impl Search<'_> {
    /// Searches on all ranks. An error if a rank fails, or if the result of the fastest kernel is wrong.
    pub fn run(&self) -> Result<Found, Box<Outcome>> {
        let started = Instant::now();
        let job = self.job(self.kernel.spec.config());
        let inputs = job.inputs();
        let results = job.on_ranks(|ranks| self.on_rank(ranks, &inputs));
        let mut found = None;
        let result = results.and_then(|results| {
            let completed = results.into_iter().map(|result| {
                let (completed, of_rank) = result?;
                // All ranks find the same, since they compare the same times.
                found = found.take().or(Some(of_rank));
                Ok(completed)
            });
            merge(completed.collect())
        });
        let is_right = |ran: &Completed| ran.verdict.wrong == 0 && ran.repeats;
        match (&result, found) {
            (Ok(ran), Some(found)) if is_right(ran) => Ok(found),
            _ => Err(Box::new(Outcome {
                seed: self.seed,
                time: started.elapsed(),
                result,
                timeline: String::new(),
            })),
        }
    }

    fn job<'a>(&'a self, config: &'a KernelConfig) -> Job<'a> {
        Job {
            config,
            plan: self.plan,
            machine: self.machine,
            load: TokenLoad::Full,
            seed: self.seed,
            calls: 1,
            threads: self.threads(),
            transport: self.transport.clone(),
            launched: None,
        }
    }

    /// The threads of a rank for work of the CPU.
    fn threads(&self) -> usize {
        (cores() / self.plan.spec.world() as usize).max(1)
    }

    fn on_rank(
        &self,
        ranks: &Communicator,
        inputs: &[Inputs],
    ) -> Result<(Completed, Found), RankError> {
        ranks.set_tuned(Tuned::default());
        ranks.set_transport(self.transport.clone());
        ranks.set_host_timeout(COMPILING);
        let device = ranks.device();
        let untuned = || {
            let config = self.kernel.spec.config().clone();
            Candidate::new(config, device).ok_or(RankError::NoPlan)
        };
        let untuned_first = untuned()?;
        let timing = Timing::new(ranks, &untuned_first.plan, &inputs[0])?;
        let (mut best, compared) = self.shortlist(ranks, &timing, untuned_first)?;
        best.push(untuned()?);
        let times = self.times(ranks, &timing, &best, self.rounds)?;
        let last = times.len() - 1;
        let untuned_us = times[last];
        if !untuned_us.is_finite() {
            return Err(RankError::NoPlan);
        }
        let fastest = (0..last).min_by(|a, b| times[*a].total_cmp(&times[*b]));
        let fastest = fastest.filter(|index| times[*index] < untuned_us * MOST_TUNED);
        let fastest = fastest.unwrap_or(last);
        let times = TunedTimes {
            us: rounded(times[fastest]),
            untuned_us: rounded(untuned_us),
        };
        let config = best.swap_remove(fastest).config;
        let completed = self.completed(ranks, &config, inputs)?;
        let tuned = TunedKernel::new(config, device, times);
        Ok((completed, Found { tuned, compared }))
    }

    /// The fastest candidates other than the kernel without fixed choices, and the number of kernels that were compared.
    fn shortlist(
        &self,
        ranks: &Communicator,
        timing: &Timing<'_>,
        untuned: Candidate,
    ) -> Result<(Vec<Candidate>, usize), RankError> {
        let (device, config) = (ranks.device(), untuned.config.clone());
        let mut known = Known::default();
        known.add(&untuned);
        let mut best = vec![untuned];
        let earlier = self.known.clone().into_iter().collect();
        best.extend(known.best_of(earlier, device, 1));
        let most = self.candidates.saturating_sub(best.len());
        best.extend(known.best_of(config.candidates(), device, most));
        let mut compared = best.len();
        self.sort_by_time(ranks, timing, &mut best)?;
        let refinements = best[0].config.refinements();
        let refined = known.best_of(refinements, device, self.candidates - 1);
        compared += refined.len();
        best.truncate(2);
        best.extend(refined);
        self.sort_by_time(ranks, timing, &mut best)?;
        best.retain(|candidate| candidate.config != config);
        best.truncate(3);
        Ok((best, compared))
    }

    /// Measures candidates and sorts them, the fastest first. Candidates that could not be prepared are removed.
    fn sort_by_time(
        &self,
        ranks: &Communicator,
        timing: &Timing<'_>,
        candidates: &mut Vec<Candidate>,
    ) -> Result<(), RankError> {
        let times = self.times(ranks, timing, candidates, ROUNDS)?;
        let mut timed: Vec<_> = times.into_iter().zip(candidates.drain(..)).collect();
        timed.retain(|(us, _)| us.is_finite());
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        candidates.extend(timed.into_iter().map(|(_, candidate)| candidate));
        match candidates.is_empty() {
            false => Ok(()),
            true => Err(RankError::NoPlan),
        }
    }

    /// The median time of each candidate, µs; infinite if the candidate could not be prepared.
    fn times(
        &self,
        ranks: &Communicator,
        timing: &Timing<'_>,
        candidates: &[Candidate],
        rounds: u32,
    ) -> Result<Vec<f64>, RankError> {
        self.compile(ranks, candidates)?;
        let mut operators = Vec::new();
        let mut prepared = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            match ranks.prepare(&candidate.config, self.plan.shape()) {
                Ok(operator) => {
                    operators.push(operator);
                    prepared.push(index);
                }
                Err(error) => tracing::debug!(%error, id = candidate.plan.id, "not a candidate"),
            }
        }
        // A candidate that all ranks have refused leaves the communicator usable. After any other error the search ends here.
        ranks.check()?;
        let mut times = vec![f64::INFINITY; candidates.len()];
        let of_prepared = (self.times)(timing, &operators, rounds)?;
        for (index, rounds) in prepared.into_iter().zip(of_prepared) {
            times[index] = median(&rounds);
            candidates[index].log(times[index]);
        }
        Ok(times)
    }

    /// Compiles candidates into the cache, each on one rank. `prepare` reports kernels that do not compile.
    fn compile(&self, ranks: &Communicator, candidates: &[Candidate]) -> Result<(), RankError> {
        if let Ok(store) = Store::from_env() {
            let (rank, world) = (ranks.rank() as usize, ranks.world() as usize);
            let own: Vec<_> = candidates.iter().skip(rank).step_by(world).collect();
            in_parallel(self.threads(), own.len(), |index| {
                store.get_or_render(&own[index].template).map(|_| ())
            });
        }
        Ok(ranks.barrier()?)
    }

    /// The verdict about the results of the kernel with these choices. Without checks it is empty.
    fn completed(
        &self,
        ranks: &Communicator,
        config: &KernelConfig,
        inputs: &[Inputs],
    ) -> Result<Completed, RankError> {
        if !self.checks {
            return Ok(Completed {
                plan: self.plan.clone(),
                verdict: Verdict::default(),
                repeats: true,
                is_batch_invariant: None,
            });
        }
        let job = self.job(config);
        let (plan, results) = job.results(ranks, inputs)?;
        job.judged(ranks.rank(), plan, inputs, &results)
    }
}

/// A time with the digits that a measurement has.
fn rounded(us: f64) -> f64 {
    (us * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::machine::Simulated;
    use mkernel_spec::{Device, Dim, GemmConfig, GemmOp, KernelSpec, SizedSpec};

    /// Times by which fixed tiles are faster than the choices of the cost model, and fixed stages are the fastest.
    fn stages_matter(
        _: &Timing<'_>,
        operators: &[Operator],
        rounds: u32,
    ) -> Result<Vec<Vec<f64>>, mkernel_measure::Failure> {
        let us = |operator: &Operator| {
            let gemm = operator.plan().spec.problem().gemm();
            match gemm.map(|gemm| (gemm.tuning.tile_m, gemm.tuning.stages)) {
                Some((Some(_), Some(_))) => 10.0,
                Some((Some(_), None)) => 15.0,
                _ => 20.0,
            }
        };
        let all = operators
            .iter()
            .map(|operator| vec![us(operator); rounds as usize]);
        Ok(all.collect())
    }

    fn all_are_equal(
        _: &Timing<'_>,
        operators: &[Operator],
        rounds: u32,
    ) -> Result<Vec<Vec<f64>>, mkernel_measure::Failure> {
        Ok(vec![vec![20.0; rounds as usize]; operators.len()])
    }

    fn found(times: Times, known: Option<KernelConfig>) -> Found {
        let gemm = GemmConfig {
            m: Dim::Static(64),
            n: Dim::Static(128),
            k: Dim::Static(512),
            ..GemmConfig::new(GemmOp::GemmRs)
        };
        let config = KernelConfig::new(2, gemm);
        let spec = SizedSpec::validate(config.clone()).expect("valid");
        let plan = KernelPlan::new(&spec, &Device::simulated(8)).expect("a plan");
        let kernel = Kernel {
            label: "gemm_rs".to_owned(),
            location: "flags".to_owned(),
            spec: KernelSpec::validate(config).expect("valid"),
            plan: None,
            is_for_any_world: false,
        };
        let search = Search {
            kernel: &kernel,
            plan: &plan,
            known,
            machine: Machine::Simulated(Simulated {
                sms: 8,
                skew: 20,
                timeline: false,
            }),
            transport: Transport::default(),
            seed: 3,
            times,
            candidates: 4,
            rounds: 1,
            checks: true,
        };
        let found = search.run();
        found.unwrap_or_else(|outcome| panic!("{:?}", outcome.result))
    }

    #[test]
    fn the_fastest_choices_are_found_and_right() {
        let found = found(stages_matter, None);
        assert!(found.compared > 4, "{}", found.compared);
        let times = found.tuned.times;
        assert_eq!((times.us, times.untuned_us), (10.0, 20.0));
        assert!(
            found.tuned.kernel.fixed_choices().contains("stages = "),
            "{:?}",
            found.tuned
        );
    }

    /// With two candidates, the choices of an earlier search are compared with those of the planner.
    #[test]
    fn earlier_choices_are_candidates() {
        let earlier = found(stages_matter, None).tuned.kernel;
        let again = found(stages_matter, Some(earlier.clone()));
        assert_eq!(again.tuned.kernel, earlier);
    }

    /// Without a difference between times, the planner keeps its own choices.
    #[test]
    fn noise_changes_no_choice() {
        let found = found(all_are_equal, None);
        assert_eq!(found.tuned.kernel.fixed_choices(), "");
        assert_eq!(found.tuned.times.us, found.tuned.times.untuned_us);
    }
}
