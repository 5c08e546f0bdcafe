//! Tests of operators with buckets, on simulated GPUs: calls that change from one bucket to another, in a graph and launched.

use mkernel::network::Faults;
use mkernel::spec::plan::{Body, GemmPlan};
use mkernel::spec::{Device, KernelPlan, SizedSpec};
use mkernel_testing::jobs::gemm::buckets::{in_buckets, in_buckets_across};
use mkernel_testing::jobs::{
    GemmJob, Mutation, all_are_right_now_or_after_many_calls, all_mutations_are_found, bad_network,
    named, planted,
};
use std::fmt::Debug;

/// The number of seeds with which a mutation must be found.
const SEEDS: u64 = 20;

#[test]
fn calls_may_change_buckets() {
    all_are_right_now_or_after_many_calls(&in_buckets(2));
}

#[test]
fn calls_may_change_buckets_on_several_nodes() {
    all_are_right_now_or_after_many_calls(&in_buckets_across(2, 2, &bad_network()));
}

/// The cost model decides what buckets are. Else the tests above would show nothing of how they differ.
#[test]
fn buckets_differ_in_what_they_should() {
    differ("tiles", |plan| plan.tile);
    differ("CTAs that push", |plan| plan.comm_ctas);
    differ("shots", |plan| {
        plan.reduction.as_ref().map(|found| found.shots)
    });
    differ("packets", |plan| plan.load_rows_a);
    differ("results", |plan| plan.tile);
}

/// Asserts that the buckets of the job of this name differ in `part`.
fn differ<T: PartialEq + Debug>(name: &str, part: impl Fn(&GemmPlan) -> T) {
    let job = named(in_buckets(2), name);
    let spec = SizedSpec::for_sizes(job.kernel(), job.shape);
    let plan = KernelPlan::new(&spec.expect("valid"), &Device::simulated(job.sms));
    let plan = plan.expect("a plan");
    let gemms = plan.bodies.iter().filter_map(Body::gemm);
    let parts: Vec<_> = gemms.map(part).collect();
    let differ = parts.iter().any(|part| *part != parts[0]);
    assert!(differ, "{name}: {parts:?}");
}

fn gather() -> GemmJob {
    named(in_buckets(2), "CTAs that push")
}

fn packets() -> GemmJob {
    named(in_buckets(2), "packets")
}

/// Tiles have owners. Marks say whose sums have arrived.
fn results() -> GemmJob {
    named(in_buckets(2), "results")
}

fn across() -> GemmJob {
    named(in_buckets_across(2, 1, &Faults::default()), "ag_gemm")
}

#[rustfmt::skip]
const MUTATIONS: &[Mutation] = &[
    // The choice of a bucket.
    ("bucket of the rows of the call before", gather, planted::BUCKET_OF_CALL_BEFORE),
    ("bucket of one row less", packets, planted::BUCKET_OF_ONE_ROW_LESS),
    // Numbers of calls.
    ("calls of a bucket not counted", gather, planted::CALLS_NOT_COUNTED),
    ("sums of a bucket whose calls are not counted", results, planted::CALLS_NOT_COUNTED),
    ("flags of a bucket compared with the calls of all", gather, planted::CALLS_OF_ALL),
    ("calls of the first bucket in place of those of each", gather, planted::CALLS_OF_FIRST),
    ("calls counted for the first bucket", gather, planted::CALLS_COUNTED_FOR_FIRST),
    ("puts of a bucket counted with those of all", across, planted::CALLS_OF_ALL),
    // The state that all buckets share.
    ("announcements by the calls of a bucket", gather, planted::ANNOUNCED_BY_BUCKET),
    ("announcements put by the calls of a bucket", across, planted::PUT_BY_BUCKET),
    ("calls counted as those of a bucket", gather, planted::CALLS_OF_BUCKET),
];

#[test]
fn every_mutation_of_buckets_is_found() {
    all_mutations_are_found(MUTATIONS, SEEDS);
}
