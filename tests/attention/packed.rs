//! Tests of calls with packed sequences of different lengths.

use mkernel_testing::jobs::attention::AttentionJob;
use mkernel_testing::jobs::attention::cases::{random_sequences, with_sequences};
use mkernel_testing::jobs::{
    Backend, all_are_right, all_are_right_now_or_after_many_calls, each_in_one, share,
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
    all_are_right(&share(random(1, 2), "", (0, 2)), 1);
}

/// This test is for changes of attention and of the simulator.
#[test]
#[ignore = "takes a quarter of an hour"]
fn packed_sequences_of_many_random_lengths_are_right() {
    for seed in 2..12 {
        let jobs = [1, 2, 4].into_iter().flat_map(|world| random(seed, world));
        all_are_right(&jobs.collect::<Vec<_>>(), 1);
    }
}

/// A sequence gets the bits that it gets in calls of its own, whatever lies beside it.
#[test]
fn neighbours_change_no_bits() {
    use mkernel::spec::Placement::Zigzag;
    for world in [1, 2] {
        let job = |lengths: &[&[u64]]| {
            let job = AttentionJob::new(world, [3, 300, 2, 1, 64], 3).causal(Zigzag);
            job.with_sequences(lengths)
        };
        // The first sequence of the first call has equal elements in both jobs.
        let alone = job(&[&[150]]).run_on(Backend::Simulated { seed: 0 });
        let beside = job(&[&[150, 131, 19]]).run_on(Backend::Simulated { seed: 1 });
        let (alone, beside) = (alone.expect("right"), beside.expect("right"));
        for (alone, beside) in alone.iter().zip(&beside) {
            let (alone, beside) = (&alone[0], &beside[0]);
            // O comes first, with the rows of the first sequence first.
            let rows = alone.len() / (2 * 65);
            let elems = rows * 2 * 64;
            assert!(alone[..elems] == beside[..elems], "world {world}: O");
            // LSE has the rows of each head.
            let (of_alone, of_beside) = (&alone[elems..], &beside[beside.len() / 65 * 64..]);
            let stride = of_beside.len() / 2;
            for head in 0..2 {
                let found = &of_beside[head * stride..][..rows];
                assert!(
                    found == &of_alone[head * rows..][..rows],
                    "world {world}: LSE"
                );
            }
        }
    }
}
