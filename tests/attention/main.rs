//! Tests of `ring_attention` with another length of the sequence in each call, alone, packed or behind cached rows, on simulated
//! GPUs. The results are compared with a reference in fp64, and nothing else may be written.

mod cached;
mod failed;
mod lse;
mod not_finite;
mod offsets;
mod packed;
mod rows;
mod strided;

use mkernel_testing::jobs::attention::AttentionJob;
use mkernel_testing::jobs::attention::cases::{with_rows, with_rows_across};
use mkernel_testing::jobs::{
    all_are_right, all_are_right_now_or_after_many_calls, bad_network, each_in_one, share,
};
use mkernel_testing::lab::Random;

/// Returns jobs on several nodes with a short lead of forwards and at most four parts per put.
fn across(nodes: u32, local_world: u32) -> Vec<(String, AttentionJob)> {
    let jobs = with_rows_across(nodes, local_world, &bad_network());
    let soon = |(name, job): (String, AttentionJob)| (name, job.forwarding_after(4));
    jobs.into_iter().map(soon).collect()
}

#[test]
fn calls_of_any_length_are_right_on_one_rank() {
    all_are_right_now_or_after_many_calls(&with_rows(1));
}

#[test]
fn calls_of_any_length_are_right_on_several_ranks() {
    all_are_right_now_or_after_many_calls(&each_in_one(&[2, 4], with_rows));
}

#[test]
fn calls_of_any_length_are_right_across_nodes() {
    let jobs = each_in_one(&[(2, 1), (2, 2)], |(nodes, local)| across(nodes, local));
    all_are_right_now_or_after_many_calls(&jobs);
}

/// Returns these jobs with calls of random lengths.
fn random(seed: u64, mut jobs: Vec<(String, AttentionJob)>) -> Vec<(String, AttentionJob)> {
    let mut random = Random(seed);
    for (name, job) in &mut jobs {
        let most = job.shape().seq;
        job.rows = (0..6).map(|_| random.below(most + 1)).collect();
        *name = format!("{name}, {:?}", job.rows);
    }
    jobs
}

#[test]
fn calls_of_random_lengths_are_right() {
    let jobs = [with_rows(2), across(2, 2)].concat();
    all_are_right(&share(random(1, jobs), "", (0, 3)), 1);
}

/// A long run for changes of attention and of the simulator.
#[test]
#[ignore = "takes a quarter of an hour"]
fn calls_of_many_random_lengths_are_right() {
    let jobs = [with_rows(2), with_rows(4), across(2, 1), across(2, 2)].concat();
    (2..10).for_each(|seed| all_are_right(&random(seed, jobs.clone()), 1));
}
