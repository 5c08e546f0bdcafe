//! Every operator, with numbers of rows or tokens that change from call to call, over hundreds of schedules of simulated GPUs.
//! Every bit of the results is known. Only results of attention are compared with fp64.
//!
//! ```text
//! cargo test --test sizes -- --ignored --nocapture
//! ```
//!
//! Kernels are compiled once; the seed draws the sizes of the calls, how unfair the schedule is, and the faults of the network.
//! The environment variable `MKERNEL_TEST_SEEDS` changes the number of seeds.

use mkernel_testing::jobs::attention::{AttentionJob, cached_cases, cases as attention};
use mkernel_testing::jobs::collective::{CollectiveJob, cases as collective};
use mkernel_testing::jobs::experts::Layer;
use mkernel_testing::jobs::gemm::cases as gemm;
use mkernel_testing::jobs::{GemmJob, SimulatedJob, bad_network, for_each_in_parallel};
use mkernel_testing::lab::Random;
use std::sync::Mutex;

const SEEDS: u64 = 500;
const CALLS: usize = 4;

/// Makes the calls of a seed with one operator.
type Run = Box<dyn Fn(u64, &mut Random) -> Result<(), String> + Sync>;

/// An operator on one node or on several nodes, and its jobs. Each seed takes one job.
struct Case {
    name: String,
    jobs: Vec<Run>,
}

#[test]
#[ignore = "takes 40 minutes on two cores"]
fn every_operator_serves_all_sizes() {
    let given = std::env::var("MKERNEL_TEST_SEEDS").map(|text| text.parse().expect("a number"));
    let seeds = given.unwrap_or(SEEDS);
    let cases = [
        gemms(gemm::with_rows(2), "on a node"),
        gemms(gemm::with_rows_across(2, 2, &bad_network()), "on 2x2"),
        collectives(collective::with_rows(4), "on a node"),
        collectives(collective::with_rows_across(2, 2, &bad_network()), "on 2x2"),
        vec![
            attentions(attention::with_rows(2), "on a node"),
            attentions(cached_cases::with_cached_rows(2), "on a node, cached rows"),
            attentions(attention::with_rows_across(2, 2, &bad_network()), "on 2x2"),
            experts(&Layer::new(2, 6, 3, 20), "on a node"),
            experts(&Layer::new(4, 8, 3, 9).across(2, bad_network()), "on 2x2"),
        ],
    ];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    let all: Vec<(&Case, u64)> = cases
        .iter()
        .flat_map(|case| (0..seeds).map(move |seed| (case, seed)))
        .collect();
    let failures = Mutex::new(Vec::new());
    for_each_in_parallel(&all, |(case, seed)| {
        let mut random = Random(*seed);
        let job = &case.jobs[random.below(case.jobs.len() as u64) as usize];
        if let Err(failure) = job(*seed, &mut random) {
            let failure = format!("{}, seed {seed}: {failure}", case.name);
            println!("{failure}");
            failures.lock().expect("no panic").push(failure);
        }
        if seed + 1 == seeds {
            println!("{}: {seeds} seeds", case.name);
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Draws the rows of the calls: none, one, all, and numbers that no tile divides.
fn rows(random: &mut Random, most: u64) -> Vec<u64> {
    let draw = |_| match random.below(5) {
        0 => 0,
        1 => 1,
        2 => most,
        _ => random.below(most + 1),
    };
    (0..CALLS).map(draw).collect()
}

fn skew(random: &mut Random) -> u32 {
    random.below(101) as u32
}

/// Returns the cases of all values of `op`.
fn by_operator<J: 'static>(
    jobs: Vec<(String, J)>,
    place: &str,
    op: impl Fn(&J) -> String,
    run: impl Fn(J) -> Run,
) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (_, job) in jobs {
        let name = format!("{} {place}", op(&job));
        let run = run(job);
        match cases.iter_mut().find(|case| case.name == name) {
            Some(case) => case.jobs.push(run),
            None => cases.push(Case {
                name,
                jobs: vec![run],
            }),
        }
    }
    cases
}

fn gemms(jobs: Vec<(String, GemmJob)>, place: &str) -> Vec<Case> {
    by_operator(
        jobs,
        place,
        |job| job.config.op.op().name().to_owned(),
        |job| {
            Box::new(move |seed, random| {
                let mut job = job.clone().with_rows(&rows(random, job.shape.m));
                job.skew = skew(random);
                job.run(seed).map(drop)
            })
        },
    )
}

fn collectives(jobs: Vec<(String, CollectiveJob)>, place: &str) -> Vec<Case> {
    by_operator(
        jobs,
        place,
        |job| job.config.op.to_string(),
        |job| {
            Box::new(move |seed, random| {
                let mut job = job.clone().with_rows(&rows(random, job.shape().m));
                job.machine.skew = skew(random);
                job.run(seed).map(drop)
            })
        },
    )
}

fn attentions(jobs: Vec<(String, AttentionJob)>, place: &str) -> Case {
    let jobs = jobs.into_iter().map(|(_, job)| -> Run {
        Box::new(move |seed, random| {
            let mut job = job.clone().with_rows(&rows(random, job.shape().seq));
            job.machine.skew = skew(random);
            // Results may differ from fp64 by rounding, but all runs must have equal bits.
            let results = [seed, seed ^ 1 << 32].map(|seed| job.run(seed));
            match &results {
                [Ok(first), Ok(second)] if first != second => {
                    Err("other bits in a second run".into())
                }
                _ => results.into_iter().try_for_each(|result| result.map(drop)),
            }
        })
    });
    Case {
        name: format!("ring_attention {place}"),
        jobs: jobs.collect(),
    }
}

/// Returns the case of a layer with new numbers of tokens in each call and random experts.
fn experts(layer: &Layer, place: &str) -> Case {
    let layer = layer.clone();
    let run: Run = Box::new(move |seed, random| {
        let mut layer = layer.clone();
        layer.skew = skew(random);
        layer.split_k = [None, Some(2), Some(4)][random.below(3) as usize];
        layer.low_latency_tokens = match random.below(3) {
            0 => None,
            1 => Some(0),
            _ => Some(rows(random, layer.max_tokens)[0] as u32),
        };
        for _ in 0..CALLS {
            let tokens = |_| rows(random, layer.max_tokens)[0] as usize;
            let counts: Vec<usize> = (0..layer.world).map(tokens).collect();
            let draws = random.draw();
            let (experts, top_k) = (layer.experts, layer.top_k);
            layer = layer.call(&counts, |rank, token| {
                let mut random = Random(draws ^ (rank as u64) << 32 ^ token as u64);
                let first = random.below(experts);
                let step = 1 + random.below(experts / top_k);
                (0..top_k)
                    .map(|k| ((first + k * step) % experts) as i32)
                    .collect()
            });
        }
        layer.run(seed).map(drop)
    });
    Case {
        name: format!("dispatch_gemm and combine {place}"),
        jobs: vec![run],
    }
}
