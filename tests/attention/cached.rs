//! Tests of calls with cached rows of K and V. If numbers of cached rows are wrong, every rank gets an error that names the
//! mistake, and kernels access only their operands.

use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel::spec::{AttentionConfig, AttentionOp, AttentionShape, Dim, Placement};
use mkernel::{Error, ErrorKind, KernelConfig, Operand};
use mkernel_testing::jobs::attention::AttentionJob;
use mkernel_testing::jobs::attention::cached_cases::{with_cached_rows, with_cached_rows_across};
use mkernel_testing::jobs::prepared::{
    Prepared, all_succeed, error_at_once, expect_wrong_values, on_ranks,
};
use mkernel_testing::jobs::{
    all_are_right, all_are_right_now_or_after_many_calls, bad_network, each_in_one, share,
};
use mkernel_testing::lab::Random;

#[test]
fn calls_with_cached_rows_are_right_on_one_rank() {
    all_are_right_now_or_after_many_calls(&with_cached_rows(1));
}

#[test]
fn calls_with_cached_rows_are_right_on_several_ranks() {
    all_are_right_now_or_after_many_calls(&each_in_one(&[2, 4], with_cached_rows));
}

#[test]
fn calls_with_cached_rows_are_right_across_nodes() {
    let across = |(nodes, local_world)| {
        let jobs = with_cached_rows_across(nodes, local_world, &bad_network()).into_iter();
        jobs.map(|(name, job)| (name, job.forwarding_after(4)))
            .collect()
    };
    all_are_right_now_or_after_many_calls(&each_in_one(&[(2, 1), (2, 2)], across));
}

/// Returns the jobs with calls of random lengths over up to a random number of cached rows.
fn random(seed: u64) -> Vec<(String, AttentionJob)> {
    let mut random = Random(seed);
    let mut jobs = with_cached_rows(2);
    for (name, job) in &mut jobs {
        let most = job.shape().seq;
        job.rows = (0..5).map(|_| random.below(most + 1)).collect();
        job.config.cached = Some(1 + random.below(400) as u32);
        *name = format!("{name}, {:?} over {:?}", job.rows, job.config.cached);
    }
    jobs
}

#[test]
fn calls_of_random_lengths_over_random_caches_are_right() {
    all_are_right(&share(random(1), "", (0, 3)), 1);
}

/// A long run for changes of attention and of the simulator.
#[test]
#[ignore = "takes ten minutes"]
fn calls_of_many_random_lengths_over_random_caches_are_right() {
    (2..10).for_each(|seed| all_are_right(&random(seed), 1));
}

const SHAPE: AttentionShape = AttentionShape {
    batch: 2,
    seq: 100,
    heads: 2,
    kv_heads: 1,
    head_dim: 64,
};
const CACHED: u32 = 200;

/// The contents of O before a call.
const UNWRITTEN: f32 = 77.0;

/// The SMs of a simulated GPU.
const SMS: u32 = 3;

/// Returns the configuration of an operator with cached rows.
fn config(world: u32) -> KernelConfig {
    let config = AttentionConfig {
        batch: Dim::Static(SHAPE.batch),
        heads: Dim::Static(SHAPE.heads),
        kv_heads: Dim::Static(SHAPE.kv_heads),
        head_dim: Dim::Static(SHAPE.head_dim),
        causal: true,
        placement: Placement::Zigzag,
        cached: Some(CACHED),
        ..AttentionConfig::new(AttentionOp::RingAttention)
    };
    KernelConfig::new(world, config)
}

/// Makes a call of `rows` rows with these numbers of cached rows. Returns the number of elements of O that it has written.
fn call(rank: &Prepared<'_>, rows: u64, counts: &[i32]) -> (usize, Result<(), Error>) {
    let Prepared {
        ranks,
        operator,
        stream,
    } = rank;
    let room = SHAPE.rank_rows(ranks.world(), Placement::Zigzag);
    let elems = |rows: u64, heads| (SHAPE.batch * rows * heads * SHAPE.head_dim) as usize;
    let ones = |elems| stream.clone_htod(&vec![bf16::ONE; elems]).expect("memory");
    let q = ones(elems(room, SHAPE.heads));
    let keys = ones(elems(room + u64::from(CACHED), SHAPE.kv_heads));
    let o = vec![bf16::from_f32(UNWRITTEN); elems(room, SHAPE.heads)];
    let mut o = stream.clone_htod(&o).expect("memory");
    let lse = (SHAPE.batch * room * SHAPE.heads) as usize;
    let mut lse: CudaSlice<f32> = stream.alloc_zeros(lse).expect("memory");
    let counts = stream.clone_htod(counts).expect("memory");
    let call = operator
        .call(stream)
        .read(Operand::Q, &q)
        .read(Operand::K, &keys)
        .read(Operand::V, &keys)
        .read(Operand::CachedRows, &counts)
        .write(Operand::O, &mut o)
        .write(Operand::Lse, &mut lse);
    let outcome = call.rows(rows).launch();
    let outcome = outcome.and_then(|()| ranks.synchronize(stream));
    let o = stream.clone_dtoh(&o).expect("memory");
    let written = o.iter().filter(|x| **x != bf16::from_f32(UNWRITTEN));
    (written.count(), outcome)
}

/// Every rank returns the error at once, not at a deadline. The total number of cached rows is equal on all ranks.
#[test]
fn different_numbers_are_an_error_that_names_two_ranks() {
    for world in [2, 4] {
        for seed in 0..3 {
            let outcomes = on_ranks(&config(world), SHAPE, (SMS, seed), |rank| {
                let mut counts = vec![20; (world * 2) as usize];
                if rank.ranks.rank() == 1 {
                    (counts[0], counts[1]) = (19, 21);
                }
                let error = error_at_once(|| call(rank, 100, &counts).1);
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
                Err(error)
            });
            for (rank, outcome) in outcomes.into_iter().enumerate() {
                let failure = outcome.expect_err("different numbers");
                let is_named = failure.contains("rank 1 ") && failure.contains("or cached_rows");
                assert!(is_named, "{world}, rank {rank}: {failure}");
            }
        }
    }
}

/// Ranks also compare the numbers of new rows.
#[test]
fn different_rows_over_equal_caches_are_an_error() {
    let outcomes = on_ranks(&config(2), SHAPE, (SMS, 0), |rank| {
        let rows = 99 + u64::from(rank.ranks.rank());
        let error = error_at_once(|| call(rank, rows, &[7; 4]).1);
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        Err(error)
    });
    assert!(outcomes.iter().all(Result::is_err));
}

/// The call writes nothing, and the communicator stays usable.
#[test]
fn numbers_that_are_not_possible_are_an_error_of_their_call() {
    let wrong = [
        (
            0,
            201,
            "rank 0 has 201 cached rows of sequence 0, but 0 to 200 are possible",
        ),
        (1, -1, "rank 0 has -1 cached rows of sequence 1, but"),
        (
            3,
            i32::MAX,
            "rank 1 has 2147483647 cached rows of sequence 1",
        ),
    ];
    all_succeed(&config(2), SHAPE, (SMS, 0), |rank| {
        for (number, (index, count, part)) in wrong.iter().enumerate() {
            let mut counts = [200; 4];
            counts[*index] = *count;
            let (written, outcome) = call(rank, 100, &counts);
            expect_wrong_values(outcome, number + 1, part);
            assert_eq!(written, 0, "{counts:?}");
        }
        let (written, outcome) = call(rank, 100, &[200, 0, 1, 199]);
        assert_eq!(written, 50 * 2 * 2 * 64);
        outcome
    });
}

#[test]
fn operands_of_calls_with_cached_rows_are_checked_before_the_launch() {
    all_succeed(&config(2), SHAPE, (SMS, 0), |rank| {
        let (_, outcome) = call(rank, 100, &[7; 3]);
        let text = outcome.expect_err("short").to_string();
        assert!(text.contains("cached_rows"), "{text}");
        let (_, outcome) = call(rank, 101, &[7; 4]);
        let error = outcome.expect_err("too many rows");
        assert_eq!(error.kind(), ErrorKind::Operands, "{error}");
        call(rank, 0, &[7; 4]).1
    });
}
