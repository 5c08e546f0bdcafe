//! Tests of `ring_attention` on one node against a reference in fp64: lengths that no tile divides, masks, both
//! placements and layouts, heads that share K and V, and few slots. Repeated runs must give equal bits.

use crate::compile::{compile, expect_plans};
use crate::nodes::topologies;
use crate::ranks::{expect_right, on_ranks, prepare, seed, worlds};
use crate::runs::run_times;
use mkernel::network::Faults;
use mkernel::spec::Placement::{Contiguous, Zigzag};
use mkernel::spec::{BLayout, GemmShape, SizedSpec, Tuning};
use mkernel_testing::jobs::attention::cached_cases::{with_cached_rows, with_cached_rows_across};
use mkernel_testing::jobs::attention::cases::{
    not_finite_rows, random_sequences, small, with_rows, with_rows_across, with_sequences,
};
use mkernel_testing::jobs::attention::{AttentionJob, CallPattern, InputKind};
use mkernel_testing::jobs::{Backend, for_each_in_parallel};
use mkernel_testing::lab::{Failure, Lab, Random, TimeLimit, seed_from_clock};
use std::time::Duration;

/// Returns jobs that are too large for simulated GPUs.
fn large(world: u32) -> Vec<(String, AttentionJob)> {
    let rows = |of_rank: u64| of_rank * u64::from(world);
    let job = |sizes| AttentionJob::new(world, sizes, 0);
    let jobs = [
        ("whole tiles", job([1, rows(512), 8, 8, 128])),
        ("a tail", job([2, rows(400) + 1, 4, 4, 128]).bhsd()),
        (
            "shared keys",
            job([1, rows(384), 16, 2, 128]).causal(Contiguous),
        ),
        ("zigzag", job([1, rows(512), 8, 2, 128]).causal(Zigzag)),
        (
            "zigzag, a tail",
            job([3, rows(333) - 1, 4, 1, 64]).causal(Zigzag).bhsd(),
        ),
        ("zigzag, all keys", job([1, rows(300), 4, 4, 64]).zigzag()),
        (
            "large scores",
            job([1, rows(256), 4, 4, 128]).inputs(InputKind::Extreme),
        ),
        (
            "not finite",
            job([1, rows(256), 4, 2, 128])
                .causal(Zigzag)
                .inputs(InputKind::NotFinite),
        ),
        ("many heads", job([4, rows(40), 64, 64, 64])),
    ];
    let name = |(name, job)| (format!("attention, {name}, on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}

/// Returns jobs of 200 calls with sequences of random lengths, by one operator each.
fn random_rows(world: u32) -> Vec<(String, AttentionJob)> {
    let mut random = Random(seed_from_clock());
    let job = |sizes| AttentionJob::new(world, sizes, 0);
    let mut jobs = vec![
        ("all keys", job([1, 700, 4, 2, 64])),
        ("batches", job([2, 600, 2, 2, 128]).bhsd().zigzag()),
        ("a mask", job([2, 700, 4, 1, 128]).causal(Zigzag)),
    ];
    if world > 1 {
        let ring = job([2, 700, 4, 4, 64]).causal(Zigzag).slots(2, 4);
        jobs.push(("two slots", ring));
    }
    let named = |(name, job): (&str, AttentionJob)| {
        let most = job.shape().seq;
        let mut rows: Vec<u64> = (0..200).map(|_| random.below(most + 1)).collect();
        rows[..4].copy_from_slice(&[most, 0, 1, most]);
        let job = job.with_rows(&rows);
        let name = format!("attention, {name}, on {world} ranks, random rows");
        let graph = job.clone().pattern(CallPattern::Graph);
        [(format!("{name}, a graph"), graph), (name, job)]
    };
    jobs.into_iter().flat_map(named).collect()
}

/// Returns jobs of 40 calls with random numbers of rows over random numbers of cached rows, by one operator each.
fn random_cached(world: u32) -> Vec<(String, AttentionJob)> {
    let mut random = Random(seed_from_clock());
    let job = |sizes, most| AttentionJob::new(world, sizes, 0).cached(most);
    let jobs = [
        ("all keys", job([1, 700, 4, 2, 64], 900)),
        ("batches", job([3, 600, 2, 2, 128], 257).bhsd().zigzag()),
        ("a mask", job([2, 700, 4, 1, 128], 500).causal(Zigzag)),
        ("one row", job([4, 1, 8, 2, 128], 1000).causal(Contiguous)),
    ];
    let named = |(name, job): (&str, AttentionJob)| {
        let most = job.shape().seq;
        let mut rows: Vec<u64> = (0..40).map(|_| random.below(most + 1)).collect();
        rows[..4].copy_from_slice(&[most, 0, 1, most]);
        let job = job.with_rows(&rows);
        let name = format!("attention, {name}, on {world} ranks, random caches");
        let graph = job.clone().pattern(CallPattern::Graph);
        [(format!("{name}, a graph"), graph), (name, job)]
    };
    jobs.into_iter().flat_map(named).collect()
}

/// Returns jobs of 100 calls with packed sequences of random lengths, by one operator each.
fn random_packed(world: u32) -> Vec<(String, AttentionJob)> {
    let mut random = Random(seed_from_clock());
    let job = |sizes| AttentionJob::new(world, sizes, 0);
    let jobs = vec![
        ("all keys", job([8, 900, 4, 2, 64])),
        ("a mask", job([16, 1500, 4, 1, 128]).causal(Zigzag)),
        ("heads first", job([200, 900, 2, 2, 128]).bhsd().zigzag()),
        ("not finite", {
            let job = job([12, 1000, 2, 1, 128]).causal(Contiguous);
            job.inputs(InputKind::NotFinite)
        }),
    ];
    let named = |(name, job): (&str, AttentionJob)| {
        let shape = job.shape();
        let mut calls: Vec<Vec<u64>> = (0..100)
            .map(|_| random_sequences(&mut random, shape.batch, shape.seq))
            .collect();
        calls[0] = vec![shape.seq];
        calls[1] = vec![];
        calls[2] = vec![1; shape.batch as usize];
        let calls: Vec<&[u64]> = calls.iter().map(Vec::as_slice).collect();
        let job = job.with_sequences(&calls);
        let name = format!("attention, {name}, on {world} ranks, random packed");
        let graph = job.clone().pattern(CallPattern::Graph);
        [(format!("{name}, a graph"), graph), (name, job)]
    };
    jobs.into_iter().flat_map(named).collect()
}

/// Returns jobs with a row of K and V that is not finite.
fn not_finite(world: u32) -> Vec<(String, AttentionJob)> {
    let seq = 700 * u64::from(world);
    let job = AttentionJob::new(world, [1, seq, 12, 3, 128], 0).causal(Zigzag);
    // One row is in the middle of the sequence, and one is the first row of the last chunk.
    let rows = [seq / 2, seq - seq / (2 * u64::from(world))];
    let large = rows.map(|row| {
        let name = format!("attention, row {row} of {seq} not finite, on {world} ranks");
        (name, job.clone().inputs(InputKind::NotFiniteRow(row)))
    });
    [not_finite_rows(world), large.to_vec()].concat()
}

/// Runs every job of a world twice. The results must be right and have equal bits.
fn run(world: u32) {
    run_jobs(world, &[small(world), large(world)].concat());
}

fn run_jobs(world: u32, jobs: &[(String, AttentionJob)]) {
    compile(&jobs.iter().map(|(_, job)| spec(job)).collect::<Vec<_>>());
    for_each_in_parallel(jobs, |(_, job)| {
        job.compute();
    });
    for (name, job) in jobs {
        run_times(2, name, || job.run_on(Backend::Gpus));
    }
    println!("world {world}: {} jobs", jobs.len());
}

#[test]
#[ignore = "needs GPUs"]
fn attention_of_one_rank_is_right() {
    let _limit = TimeLimit::start("attention of one rank", Duration::from_secs(240));
    run(1);
}

#[test]
#[ignore = "needs GPUs"]
fn attention_of_several_ranks_is_right() {
    let _limit = TimeLimit::start("attention of several ranks", Duration::from_secs(480));
    worlds(2).into_iter().for_each(run);
}

/// One operator serves calls of all lengths, launched or in a graph that reads the length from memory.
#[test]
#[ignore = "needs GPUs"]
fn attention_of_random_lengths_is_right() {
    let _limit = TimeLimit::start("attention of random lengths", Duration::from_secs(480));
    for world in worlds(1) {
        run_jobs(world, &[with_rows(world), random_rows(world)].concat());
    }
}

/// One operator serves packed sequences of all lengths, launched or in a graph that reads the offsets from memory.
#[test]
#[ignore = "needs GPUs"]
fn attention_of_packed_sequences_is_right() {
    let _limit = TimeLimit::start("attention of packed sequences", Duration::from_secs(480));
    for world in worlds(1) {
        run_jobs(
            world,
            &[with_sequences(world), random_packed(world)].concat(),
        );
    }
}

/// One operator serves calls of all lengths over caches of all lengths, whose numbers are in device memory.
#[test]
#[ignore = "needs GPUs"]
fn attention_over_cached_rows_is_right() {
    let _limit = TimeLimit::start("attention over cached rows", Duration::from_secs(480));
    for world in worlds(1) {
        run_jobs(
            world,
            &[with_cached_rows(world), random_cached(world)].concat(),
        );
    }
}

/// NaN and infinity in K and V reach no row of an earlier tile. All plans give equal bits.
#[test]
#[ignore = "needs GPUs"]
fn nan_and_infinity_reach_no_earlier_tile() {
    let _limit = TimeLimit::start("attention: not finite", Duration::from_secs(480));
    for world in worlds(1) {
        let jobs = not_finite(world);
        let plans =
            |(_, job): &(String, AttentionJob)| [vec![job.clone()], job.of_other_plans()].concat();
        compile(
            &jobs
                .iter()
                .flat_map(plans)
                .map(|job| spec(&job))
                .collect::<Vec<_>>(),
        );
        for (name, job) in jobs {
            let agree = job.run_all_plans(Backend::Gpus);
            agree.unwrap_or_else(|failure| panic!("{name}: {failure}"));
        }
    }
}

/// The ranks are divided into nodes with emulated NICs.
#[test]
#[ignore = "needs GPUs"]
fn attention_of_any_length_across_nodes_is_right() {
    let _limit = TimeLimit::start("nodes: attention of any length", Duration::from_secs(480));
    for (world, nodes) in topologies() {
        let (local_world, faults) = (world / nodes, Faults::default());
        run_jobs(
            world,
            &[
                with_rows_across(nodes, local_world, &faults),
                with_cached_rows_across(nodes, local_world, &faults),
            ]
            .concat(),
        );
    }
}

/// With few slots, ranks send keys and values in another order than with all slots, but results have equal bits.
#[test]
#[ignore = "needs GPUs"]
fn few_slots_give_the_same_bits() {
    let _limit = TimeLimit::start("attention with few slots", Duration::from_secs(240));
    for world in worlds(2) {
        let rows = 384 * u64::from(world);
        for job in [
            AttentionJob::new(world, [2, rows, 8, 8, 128], 0),
            AttentionJob::new(world, [2, rows, 8, 4, 64], 0).causal(Zigzag),
            AttentionJob::new(world, [3, rows - 5, 8, 1, 128], 0).causal(Contiguous),
        ] {
            let kept = job.run_on(Backend::Gpus).expect("right");
            for (slots, ctas) in [(1, 1), (2, 4), (3, 16)] {
                for pattern in [
                    CallPattern::BackToBack,
                    CallPattern::OutOfStep,
                    CallPattern::Graph,
                ] {
                    let ring = job.clone().slots(slots, ctas).pattern(pattern);
                    let found = ring.run_on(Backend::Gpus);
                    let found = found.unwrap_or_else(|failure| panic!("{ring:?}: {failure}"));
                    assert!(found == kept, "other bits with {slots} slots");
                }
            }
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn attention_out_of_step_and_in_graphs_is_right() {
    let _limit = TimeLimit::start("attention out of step", Duration::from_secs(240));
    for world in worlds(2) {
        run_with_any_pattern(world, 1);
    }
}

/// Runs jobs whose ranks are out of step, and jobs in graphs, five times each.
pub fn run_with_any_pattern(world: u32, nodes: u32) {
    for pattern in [CallPattern::OutOfStep, CallPattern::Graph] {
        for job in [
            AttentionJob::new(world, [1, 1000, 8, 8, 128], 0),
            AttentionJob::new(world, [2, 777, 4, 2, 64], 0).causal(Contiguous),
            AttentionJob::new(world, [2, 3, 4, 2, 64], 0),
        ] {
            let job = job.across(nodes, Faults::default()).pattern(pattern);
            let name = format!("{:?}", job.config);
            run_times(5, name, || job.run_on(Backend::Gpus));
        }
    }
}

/// A GEMM follows each call of attention, on the same stream and communicator.
#[test]
#[ignore = "needs GPUs"]
fn attention_beside_gemms_is_right() {
    let _limit = TimeLimit::start("attention beside GEMMs", Duration::from_secs(120));
    let seed = seed();
    const CALLS: usize = 3;
    for world in worlds(2) {
        let rows = 300 * u64::from(world);
        let job = AttentionJob::new(world, [1, rows, 8, 2, 128], 0).causal(Zigzag);
        job.compute();
        on_ranks(world, |ranks| {
            let lab = Lab::new(&ranks.default_stream())?;
            let shape = GemmShape {
                m: 1000,
                n: 264,
                k: 520,
            };
            let problem = (shape, BLayout::Nk, Tuning::default());
            let (operator, operands) = prepare(ranks, &lab, problem, 0)?;
            operands.fill_b(&lab, seed, ranks.rank())?;
            operands.fill_a(&lab, seed)?;
            let verdicts = lab.verdicts(CALLS)?;
            let slot = std::cell::Cell::new(0);
            let gemm = || {
                operands.call(&lab, &operator, &verdicts, slot.get())?;
                slot.set(slot.get() + 1);
                Ok::<(), Failure>(())
            };
            job.run_beside(ranks, &gemm)?;
            expect_right(ranks, &lab, &verdicts)
        });
    }
}

pub fn spec(job: &AttentionJob) -> SizedSpec {
    let spec = SizedSpec::for_sizes(job.kernel(), job.shape());
    spec.unwrap_or_else(|error| panic!("{:?}: {error}", job.config))
}

/// Checks without a GPU that all jobs are possible.
#[test]
fn every_job_of_attention_has_a_plan() {
    use mkernel::spec::spec::WORLDS;
    for world in WORLDS {
        let jobs = [
            small(world),
            large(world),
            with_rows(world),
            random_rows(world),
            with_sequences(world),
            random_packed(world),
            with_cached_rows(world),
            random_cached(world),
            not_finite(world),
        ];
        for (name, job) in jobs.concat() {
            expect_plans(&spec(&job), &name);
        }
    }
}
