//! Random configurations of every operator on simulated GPUs: `mkernel-gen run` says of each element what an independent
//! computation in fp64 says, also if a wrong element is planted.
//!
//! ```text
//! cargo test -p mkernel-gen random_runs -- --ignored --nocapture
//! ```
//!
//! The environment variable `MKERNEL_TEST_SEEDS` changes the number of seeds.

mod draw;
mod truth;

use super::inputs::{Inputs, Random};
use super::ranks::{Completed, Job, RankError, merge};
use super::routing::TokenLoad;
use super::seed_from_clock;
use super::verdict::Results;
use crate::cli::machine::{Machine, Simulated};
use crate::cli::parallel::in_parallel;
use draw::{Drawn, OPS, draw};
use mkernel::KernelPlan;
use mkernel::network::{Faults, NicModel, Transport};
use mkernel::spec::{Device, Dtype, Problem, SizedSpec};
use std::collections::BTreeSet;
use std::ops::Range;
use std::thread;
use std::time::Duration;
use truth::{Element, truth, wrong};

/// Seeds of the tests that always run: some of every operator.
const SAMPLE: u64 = 3 * OPS;
/// Seeds of the long test.
const SEEDS: u64 = 30 * OPS;

/// The results of a rank, call by call, and what they should be.
struct RankResults {
    found: Vec<Results>,
    expected: Vec<Vec<Vec<Element>>>,
}

impl RankResults {
    /// The number of elements that fp64 says are wrong.
    fn wrong(&self) -> usize {
        let calls = self.found.iter().zip(&self.expected);
        let results = calls.flat_map(|(found, expected)| found.iter().zip(expected));
        results
            .map(|((_, found), expected)| wrong(found, expected))
            .sum()
    }
}

/// A run checks one seed of each operator, since the kernels of all seeds of the sample take a minute of CI.
#[test]
fn verdicts_on_random_configurations_are_right() {
    let first = seed_from_clock() % (SAMPLE / OPS) * OPS;
    check_seeds(first..first + OPS);
}

#[test]
#[ignore = "takes 10 minutes on two cores"]
fn verdicts_on_many_random_configurations_are_right() {
    let given = std::env::var("MKERNEL_TEST_SEEDS").map(|text| text.parse().expect("a number"));
    check_seeds(0..given.unwrap_or(SEEDS));
}

/// A batch-invariant kernel of every operator but `all_to_all`, which gives rows to other ranks in another batch, has equal bits in
/// another batch.
#[test]
fn random_batch_invariant_kernels_are_right() {
    let compared = |op: &u64| (*op..SAMPLE).step_by(OPS as usize).any(is_compared);
    assert_eq!((0..OPS).filter(compared).count() as u64, OPS - 1);
}

/// Runs the batch-invariant kernel of a seed. Returns whether it was compared in another batch.
fn is_compared(seed: u64) -> bool {
    let mut drawn = draw(seed);
    drawn.config.problem.set_batch_invariant(true);
    let spec = SizedSpec::for_sizes(drawn.config.clone(), drawn.plan.shape());
    let plan = spec.and_then(|spec| KernelPlan::new(&spec, &Device::simulated(drawn.sms)));
    // Slices of K of experts are not possible.
    let Ok(plan) = plan else { return false };
    drawn.plan = plan;
    let outcome = Job {
        calls: 1,
        ..job(seed, &drawn)
    }
    .run();
    match outcome.result {
        Ok(ran) if outcome.is_right() => ran.is_batch_invariant.is_some(),
        result => panic!("seed {seed}: {:?}, {result:?}", drawn.config),
    }
}

/// The configurations of the sample have what has misled references before.
#[test]
fn the_sample_has_configurations_of_all_kinds() {
    let mut kinds = BTreeSet::new();
    for seed in 0..SAMPLE {
        let Drawn { config, plan, .. } = draw(seed);
        let name = plan.spec.op().name();
        kinds.insert(name.to_owned());
        if let Some(most) = plan.max_rows() {
            let is_divided = most % u64::from(config.world) == 0;
            kinds.insert(format!("rows of calls, divided: {is_divided}"));
        }
        kinds.insert(format!("several nodes: {}", config.nodes > 1));
        kinds.insert(format!("one rank: {}", config.world == 1));
        let floats = plan.operands().iter().map(|operand| operand.dtype);
        let floats = floats.filter(|dtype| Dtype::GEMM_FACTORS.contains(dtype));
        kinds.extend(floats.map(|dtype| format!("{name} of {dtype}")));
        if let Problem::Gemm(gemm) = &config.problem {
            kinds.insert(format!("GEMM with a bias: {}", gemm.epilogue.bias));
            kinds.insert(format!("B as {}", gemm.b_layout));
            kinds.insert(format!("scales of {}", gemm.scales));
        }
        if let Problem::Collective(collective) = &config.problem
            && collective.dtype == Dtype::E4m3
        {
            kinds.insert(format!("moved rows, scales of {}", collective.scales));
        }
        if let Problem::Attention(attention) = &config.problem {
            kinds.insert(format!("packed: {}", attention.packed));
            kinds.insert(format!("cached rows: {}", attention.cached.is_some()));
            kinds.insert(format!("LSE: {}", attention.lse));
        }
        if let Problem::Dispatch(dispatch) = &config.problem {
            kinds.insert(format!("bounded rows: {}", dispatch.max_rows.is_some()));
            kinds.insert(format!("dispatch, scales of {}", dispatch.scales));
            kinds.insert(format!("{name}, scores: {}", dispatch.router.scores));
        }
    }
    // All operators, each with both types of two bytes, and both kinds of each of nine pairs; the seven operators with a product of
    // e4m3, `all_reduce` with such rows, and three collectives that move such rows; four kinds of scales of GEMMs, two kinds of scales
    // of tokens, and three kinds of scales of moved rows; three kinds of scores of both operators that send tokens, and the choices
    // that `gemm_combine` is given.
    assert_eq!(
        kinds.len(),
        3 * OPS as usize + 2 * 9 + 11 + 4 + 2 + 3 + 7,
        "{kinds:#?}"
    );
}

/// Checks seeds on all cores, and fails with all that is wrong.
fn check_seeds(seeds: Range<u64>) {
    let count = (seeds.end - seeds.start) as usize;
    let failures = in_parallel(super::cores(), count, |index| {
        let seed = seeds.start + index as u64;
        let drawn = draw(seed);
        // A panic is the failure of its seed only.
        let checked = thread::scope(|scope| {
            let thread = scope.spawn(|| check(seed, &drawn));
            thread.join().unwrap_or_else(|_| Err("a panic".into()))
        });
        let (id, config) = (&drawn.plan.id, &drawn.config);
        let named = |failure| format!("seed {seed}: {failure}\n{id}: {config:?}");
        checked.err().map(named)
    });
    let failures: Vec<_> = failures.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs a kernel, and compares the verdict on its results with fp64, before and after a wrong element is planted.
fn check(seed: u64, drawn: &Drawn) -> Result<(), String> {
    let job = job(seed, drawn);
    let calls = job.inputs();
    let results = job.on_ranks(|ranks| Ok(job.results(ranks, &calls)?.1));
    let results = results.map_err(|failed| format!("{failed:?}"))?;
    let mut ranks = Vec::new();
    for (rank, found) in results.into_iter().enumerate() {
        let found = found.map_err(|error| format!("rank {rank}: {error}"))?;
        let expected = calls.iter().map(|call| truth(&drawn.config, call, rank));
        let expected = expected.collect();
        ranks.push(RankResults { found, expected });
    }
    let verdict = judged(&job, &calls, &ranks)?;
    let (says, is) = (verdict.verdict.wrong, total(&ranks));
    if (says, is) != (0, 0) || !verdict.repeats {
        let first = verdict.verdict.first_wrong;
        return Err(format!(
            "run says {says} elements are wrong, fp64 says {is}; {first:?}, repeats: {}",
            verdict.repeats
        ));
    }
    let Some(place) = plant(seed, &mut ranks) else {
        return Err("no result has an element".into());
    };
    let verdict = judged(&job, &calls, &ranks)?;
    let first = verdict.verdict.first_wrong;
    let found = first.map(|first| (first.call as usize, first.rank as usize, first.operand));
    match (verdict.verdict.wrong, total(&ranks), found == Some(place)) {
        (1, 1, true) => Ok(()),
        (says, is, _) => Err(format!(
            "one element is wrong at {place:?}: run says {says}, the first at {first:?}, and fp64 says {is}"
        )),
    }
}

fn job<'a>(seed: u64, drawn: &'a Drawn) -> Job<'a> {
    Job {
        config: &drawn.config,
        plan: &drawn.plan,
        load: TokenLoad::Any,
        machine: Machine::Simulated(Simulated {
            sms: drawn.sms,
            skew: drawn.skew,
            timeline: false,
        }),
        seed,
        calls: 3,
        threads: 1,
        transport: Transport::Emulated {
            nic: NicModel::default(),
            faults: Faults {
                seed,
                jitter: Duration::from_micros(50),
                loss: 0.05,
                retransmission: Duration::from_micros(20),
                ..Faults::default()
            },
        },
        launched: None,
    }
}

/// The verdict of `run` on the results of all ranks.
fn judged(job: &Job, calls: &[Inputs], ranks: &[RankResults]) -> Result<Completed, String> {
    let judge = |(rank, results): (u32, &RankResults)| -> Result<Completed, RankError> {
        job.judged(rank, job.plan.clone(), calls, &results.found)
    };
    merge((0..).zip(ranks).map(judge).collect()).map_err(|failed| format!("{failed:?}"))
}

fn total(ranks: &[RankResults]) -> usize {
    ranks.iter().map(RankResults::wrong).sum()
}

/// Makes one element wrong and returns its call, rank and operand. An element that must not be written gets a number. Any
/// other gets another number, or none. The last call, which repeats the first, stays as it is.
fn plant(seed: u64, ranks: &mut [RankResults]) -> Option<(usize, usize, &'static str)> {
    let mut random = Random(!seed);
    let mut elements = Vec::new();
    for (rank, results) in ranks.iter().enumerate() {
        for (call, expected) in results.expected.iter().enumerate() {
            let results = expected.iter().enumerate();
            let results = results.filter(|(_, elements)| !elements.is_empty());
            elements.extend(results.map(|(result, elements)| (rank, call, result, elements.len())));
        }
    }
    let (rank, call, result, count) = *elements.get(random.below(elements.len()))?;
    let index = random.below(count);
    let expected = ranks[rank].expected[call][result][index];
    let (operand, found) = &mut ranks[rank].found[call][result];
    let element = &mut found[index];
    *element = match (expected, random.below(4)) {
        (None, _) => 1.0,
        (Some(_), 0) => f32::NAN,
        // Errors of elements of e4m3 grow with the other elements of a block.
        (Some((_, error)), _) => *element + 1.0 + element.abs() / 2.0 + 4.0 * error as f32,
    };
    Some((call, rank, *operand))
}
