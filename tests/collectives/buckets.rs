//! Tests of collectives with buckets, on simulated GPUs: calls that change from one bucket to another, in a graph and launched.

use mkernel::spec::{Device, KernelPlan, SizedSpec};
use mkernel_testing::jobs::collective::CollectiveJob;
use mkernel_testing::jobs::collective::buckets::{in_buckets, normalised_in_buckets};
use mkernel_testing::jobs::{
    Mutation, all_are_right_now_or_after_many_calls, all_mutations_are_found, named, planted,
};

/// The number of seeds with which a mutation must be found.
const SEEDS: u64 = 20;

#[test]
fn calls_may_change_buckets() {
    let worlds = [2, 4].into_iter();
    all_are_right_now_or_after_many_calls(&worlds.flat_map(in_buckets).collect::<Vec<_>>());
}

#[test]
fn calls_of_norms_may_change_buckets() {
    let worlds = [2, 4].into_iter().flat_map(normalised_in_buckets);
    all_are_right_now_or_after_many_calls(&worlds.collect::<Vec<_>>());
}

/// Else the tests above would show nothing of buckets.
#[test]
fn every_job_has_buckets() {
    let norms = [2, 4].into_iter().flat_map(normalised_in_buckets);
    let jobs = [2, 4].into_iter().flat_map(in_buckets);
    for (name, job) in jobs.chain(norms.map(|(name, norm)| (name, norm.job))) {
        let spec = SizedSpec::for_sizes(job.kernel(), job.shape());
        let plan = KernelPlan::new(&spec.expect("valid"), &Device::simulated(job.machine.sms));
        let buckets = plan.expect("a plan").bodies.len();
        assert!(buckets > 1, "{name}");
    }
}

fn sums() -> CollectiveJob {
    named(in_buckets(2), "protocols,")
}

fn rows() -> CollectiveJob {
    named(in_buckets(2), "protocols of rows")
}

fn protocols() -> CollectiveJob {
    named(in_buckets(2), "protocols of sums")
}

fn broadcast() -> CollectiveJob {
    named(in_buckets(2), "broadcast, buckets of other protocols")
}

/// More than two ranks: on two ranks, data beyond the slots of one source would lie in the other source's unused slots.
fn more_sources() -> CollectiveJob {
    named(in_buckets(4), "protocols of sums")
}

// Words hold the mark of the call that wrote them, and waits compare marks for equality. So the calls of a bucket may be numbered
// by themselves or among all calls, as long as calls are counted and all ranks number alike. Slots of Lamport packets have no
// mark. If the calls of their bucket are not counted, a mistake shows only if a packet arrives before the packet of the previous
// call has been read.
#[rustfmt::skip]
const MUTATIONS: &[Mutation<CollectiveJob>] = &[
    // The choice of a bucket.
    ("bucket of the rows of the call before", sums, planted::BUCKET_OF_CALL_BEFORE),
    ("protocol of the rows of the call before", protocols, planted::BUCKET_OF_CALL_BEFORE),
    ("bucket of one row less", more_sources, planted::BUCKET_OF_ONE_ROW_LESS),
    // Numbers of calls.
    ("calls of a bucket not counted", rows, planted::CALLS_NOT_COUNTED),
    ("calls of the first bucket in place of those of each", sums, planted::CALLS_OF_FIRST),
    ("calls counted for the first bucket", rows, planted::CALLS_COUNTED_FOR_FIRST),
    // The state that all buckets share.
    ("announcements by the calls of a bucket", protocols, planted::ANNOUNCED_BY_BUCKET),
    ("calls counted as those of a bucket", rows, planted::CALLS_OF_BUCKET),
    ("earlier calls not ordered before an announcement", broadcast, &[("@begin.early", "")]),
    // CTAs that a bucket has for others.
    ("CTAs without packets not counted", protocols, &[("@ll.advance", "kThreads - 1 => kThreads - 1 && blockIdx.x * kWarp < Shards::vecs(ctx)")]),
];

#[test]
fn every_mutation_of_buckets_is_found() {
    all_mutations_are_found(MUTATIONS, SEEDS);
}
