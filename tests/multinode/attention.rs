//! Tests of `ring_attention` on several nodes: masks, both placements, ranks without rows, calls out of step, graphs, and an
//! absent node.

use mkernel::spec::Placement::{Contiguous, Zigzag};
use mkernel_testing::jobs::attention::{AttentionJob, CallPattern};
use mkernel_testing::jobs::{
    SimulatedJob, all_are_right, all_are_right_when_counters_wrap, bad_network,
};

/// The number of seeds with which one node makes no call.
const SEEDS_WITHOUT_A_RANK: u64 = 2;
/// The number of seeds per job, whose results must have equal bits.
const SEEDS: u64 = 2;

/// Returns a job on `nodes` nodes of `local_world` ranks. `sizes` are the batch, the length of the sequence, the heads
/// of Q, the heads of K and V, and the dimension of a head.
///
/// The job has two communication CTAs, a short lead of forwards, and at most 4 parts per put.
fn job((nodes, local_world): (u32, u32), sizes: [u64; 5]) -> AttentionJob {
    let job = AttentionJob::new(nodes * local_world, sizes, 3);
    job.across(nodes, bad_network())
        .pushed_by(2)
        .forwarding_after(4)
}

fn named(jobs: Vec<AttentionJob>) -> Vec<(String, AttentionJob)> {
    let name = |job: &AttentionJob| {
        let (nodes, world) = (job.nodes, job.machine.world);
        format!("{:?} on {world} ranks of {nodes} nodes", job.config)
    };
    jobs.into_iter().map(|job| (name(&job), job)).collect()
}

#[test]
fn queries_attend_to_the_keys_of_all_nodes() {
    all_are_right(
        &named(vec![
            job((2, 2), [1, 70, 6, 6, 64]),
            job((3, 1), [1, 150, 2, 2, 128]),
            job((3, 2), [1, 5, 2, 2, 64]),
            job((2, 2), [1, 270, 1, 1, 64]).zigzag(),
        ]),
        SEEDS,
    );
}

#[test]
fn masks_hold_across_nodes() {
    all_are_right(
        &named(vec![
            job((2, 1), [1, 301, 2, 1, 64]).causal(Contiguous),
            job((2, 2), [2, 301, 2, 1, 64]).causal(Zigzag),
            job((2, 3), [1, 200, 2, 2, 128]).causal(Contiguous),
        ]),
        SEEDS,
    );
}

/// The call count passes 2^31 and 2^32, and the number of puts passes 2^32 too.
#[test]
fn attention_is_right_after_many_calls() {
    all_are_right_when_counters_wrap(&named(vec![
        job((2, 1), [1, 260, 4, 4, 64]),
        job((2, 2), [2, 259, 2, 1, 64]).bhsd(),
        job((3, 2), [1, 7, 2, 2, 64]).causal(Zigzag),
        job((2, 2), [1, 300, 2, 2, 64]).causal(Contiguous),
    ]));
}

#[test]
fn calls_out_of_step_and_in_graphs_are_right() {
    let patterns = [CallPattern::OutOfStep, CallPattern::Graph];
    let jobs = patterns.map(|pattern| job((2, 2), [1, 140, 2, 2, 64]).pattern(pattern));
    let masked = patterns.map(|pattern| {
        let job = job((2, 2), [1, 140, 2, 1, 64]).pattern(pattern);
        job.causal(Contiguous)
    });
    all_are_right(&named([jobs, masked].concat()), SEEDS);
}

/// Rank 0 gets an error that names rank 1, whether its own deadline passes first or the close message of rank 1 arrives
/// first. Aborted ranks overwrite no data that other ranks still read.
#[test]
fn a_rank_that_makes_no_call_is_named() {
    for nodes in [(2, 1), (2, 2)] {
        let missing = job(nodes, [1, 140, 2, 2, 64]).pattern(CallPattern::AbsentRank { rank: 1 });
        for seed in 0..SEEDS_WITHOUT_A_RANK {
            let failure = missing.run(seed).expect_err("rank 1 is missing");
            let is_named = failure.contains("rank 1") && !failure.contains("simulator found");
            assert!(is_named, "{nodes:?}, seed {seed}: {failure}");
        }
    }
}
