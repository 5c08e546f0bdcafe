//! Tests of operators with buckets, on simulated GPUs: calls that change from one bucket to another, in a graph and launched.

use mkernel::network::Faults;
use mkernel_testing::jobs::gemm::buckets::{in_buckets, in_buckets_across};
use mkernel_testing::jobs::{
    GemmJob, Mutation, all_are_right_now_and_after_many_calls, all_mutations_are_found,
    bad_network, named,
};

/// The number of seeds with which a mutation must be found.
const SEEDS: u64 = 20;

#[test]
fn calls_may_change_buckets() {
    all_are_right_now_and_after_many_calls(&in_buckets(2));
}

#[test]
fn calls_may_change_buckets_on_several_nodes() {
    all_are_right_now_and_after_many_calls(&in_buckets_across(2, 2, &bad_network()));
}

fn gather() -> GemmJob {
    named(in_buckets(2), "CTAs that push")
}

fn packets() -> GemmJob {
    named(in_buckets(2), "packets")
}

fn shots() -> GemmJob {
    named(in_buckets(2), "shots")
}

fn across() -> GemmJob {
    named(in_buckets_across(2, 1, &Faults::default()), "ag_gemm")
}

/// The rows of the call before, which the other rank has announced in the other set of words.
const ROWS_BEFORE: &str = "ctx.rows > => (load_relaxed_sys(ctx.local_ptr(Symmetric<u64>{ctx.begun.offset ^ 16}) + (1 - ctx.rank)) >> 32) >";

#[rustfmt::skip]
const MUTATIONS: &[Mutation] = &[
    // The choice of a bucket.
    ("bucket of the rows of the call before", gather, &[("@buckets.choose", ROWS_BEFORE)]),
    ("bucket of one row less", packets, &[("@buckets.choose", "ctx.rows > => ctx.rows > 1 +")]),
    // Numbers of calls.
    ("calls of a bucket not counted", gather, &[("@call.advance-bucket", "")]),
    ("sums of a bucket whose calls are not counted", shots, &[("@call.advance-bucket", "")]),
    ("flags of a bucket compared with the calls of all", gather, &[("@buckets.epoch", "ctx.bucket_epochs[kBucket] + 1 => ctx.epoch")]),
    ("calls of the first bucket in place of those of each", gather, &[("@buckets.epoch", "[kBucket] => [0]")]),
    ("calls counted for the first bucket", gather, &[("@buckets.word", "[kBucket] => [0]")]),
    ("puts of a bucket counted with those of all", across, &[("@buckets.epoch", "ctx.bucket_epochs[kBucket] + 1 => ctx.epoch")]),
    // What all buckets have in common.
    ("announcements by the calls of a bucket", gather, &[("@begin.announce", "ctx.call_parity() => ctx.parity()")]),
    ("announcements put by the calls of a bucket", across, &[("@begin.put-word", "ctx.call_parity() => ctx.parity()")]),
    ("calls counted as those of a bucket", gather, &[("@call.advance", "ctx.call() => ctx.epoch")]),
];

#[test]
fn every_mutation_of_buckets_is_found() {
    all_mutations_are_found(MUTATIONS, SEEDS);
}
