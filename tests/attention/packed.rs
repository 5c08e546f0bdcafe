//! Tests of calls with packed sequences of different lengths.

use mkernel_testing::jobs::attention::AttentionJob;
use mkernel_testing::jobs::attention::cases::{random_sequences, with_sequences};
use mkernel_testing::jobs::{
    all_are_right, all_are_right_now_or_after_many_calls, each_in_one, share,
};
use mkernel_testing::lab::Random;

#[test]
fn packed_sequences_are_right_on_one_rank() {
    all_are_right_now_or_after_many_calls(&with_sequences(1));
}

#[test]
fn packed_sequences_are_right_on_several_ranks() {
    all_are_right_now_or_after_many_calls(&each_in_one(&[2, 4], with_sequences));
}

/// Returns jobs of every kind, on this number of ranks, whose calls have sequences of random lengths.
fn random(seed: u64, world: u32) -> Vec<(String, AttentionJob)> {
    let mut random = Random(seed);
    let mut jobs = with_sequences(world);
    for (name, job) in &mut jobs {
        let shape = job.shape();
        job.sequences = (0..5)
            .map(|_| random_sequences(&mut random, shape.batch, shape.seq))
            .collect();
        *name = format!("{name}, {:?}", job.sequences);
    }
    jobs
}

#[test]
fn packed_sequences_of_random_lengths_are_right() {
    all_are_right(&share(random(1, 2), "", (0, 3)), 1);
}

/// A long run for changes of attention and of the simulator.
#[test]
#[ignore = "takes a quarter of an hour"]
fn packed_sequences_of_many_random_lengths_are_right() {
    for seed in 2..12 {
        let jobs = [1, 2, 4].into_iter().flat_map(|world| random(seed, world));
        all_are_right(&jobs.collect::<Vec<_>>(), 1);
    }
}
