//! Tests of collectives with buckets, on simulated GPUs: calls that change from one bucket to another, in a graph and launched.

use mkernel::network::Faults;
use mkernel::spec::{Device, KernelPlan, KernelSpec};
use mkernel_testing::jobs::collective::CollectiveJob;
use mkernel_testing::jobs::collective::buckets::{
    in_buckets, in_buckets_across, normalised_in_buckets, normalised_in_buckets_across,
};
use mkernel_testing::jobs::{
    Mutation, all_are_right_now_and_after_many_calls, all_mutations_are_found, bad_network, named,
    planted,
};

/// The number of seeds with which a mutation must be found.
const SEEDS: u64 = 20;

#[test]
fn calls_may_change_buckets() {
    let worlds = [2, 4].into_iter();
    all_are_right_now_and_after_many_calls(&worlds.flat_map(in_buckets).collect::<Vec<_>>());
}

#[test]
fn calls_may_change_buckets_on_several_nodes() {
    all_are_right_now_and_after_many_calls(&in_buckets_across(2, 2, &bad_network()));
}

#[test]
fn calls_of_norms_may_change_buckets() {
    let worlds = [2, 4].into_iter().flat_map(normalised_in_buckets);
    let across = normalised_in_buckets_across(2, 2, &bad_network());
    all_are_right_now_and_after_many_calls(&worlds.chain(across).collect::<Vec<_>>());
}

/// Else the tests above would show nothing of buckets.
#[test]
fn every_job_has_buckets() {
    let faults = Faults::default();
    let norms = [2, 4].into_iter().flat_map(normalised_in_buckets);
    let norms = norms.chain(normalised_in_buckets_across(2, 2, &faults));
    let jobs = [2, 4].into_iter().flat_map(in_buckets);
    let jobs = jobs.chain(in_buckets_across(2, 2, &faults));
    for (name, job) in jobs.chain(norms.map(|(name, norm)| (name, norm.job))) {
        let spec = KernelSpec::validate(job.kernel()).and_then(|spec| spec.specialise(job.shape()));
        let plan = KernelPlan::new(&spec.expect("valid"), &Device::simulated(job.machine.sms));
        let buckets = plan.expect("a plan").buckets().count();
        assert!(buckets > 1, "{name}");
    }
}

fn chunks() -> CollectiveJob {
    named(in_buckets(2), "other chunks,")
}

fn rows() -> CollectiveJob {
    named(in_buckets(2), "chunks of rows")
}

fn shots() -> CollectiveJob {
    named(in_buckets(4), "shots")
}

fn protocols() -> CollectiveJob {
    named(in_buckets(2), "protocols of sums")
}

fn across() -> CollectiveJob {
    named(in_buckets_across(2, 1, &Faults::default()), "all_gather")
}

// Words hold the mark of the call that wrote them, which is compared for equality. So it makes no difference whether a bucket's
// calls are numbered by themselves or among all, as long as calls are counted and every rank does the same.
#[rustfmt::skip]
const MUTATIONS: &[Mutation<CollectiveJob>] = &[
    // The choice of a bucket.
    ("bucket of the rows of the call before", chunks, planted::BUCKET_OF_CALL_BEFORE),
    ("protocol of the rows of the call before", protocols, planted::BUCKET_OF_CALL_BEFORE),
    ("bucket of one row less", shots, planted::BUCKET_OF_ONE_ROW_LESS),
    // Numbers of calls.
    ("calls of a bucket not counted", rows, planted::CALLS_NOT_COUNTED),
    ("packets of a bucket whose calls are not counted", shots, planted::CALLS_NOT_COUNTED),
    ("calls of the first bucket in place of those of each", chunks, planted::CALLS_OF_FIRST),
    ("calls counted for the first bucket", shots, planted::CALLS_COUNTED_FOR_FIRST),
    ("puts of a bucket whose calls are not counted", across, planted::CALLS_NOT_COUNTED),
    // What all buckets have in common.
    ("announcements by the calls of a bucket", protocols, planted::ANNOUNCED_BY_BUCKET),
    ("announcements put by the calls of a bucket", across, planted::PUT_BY_BUCKET),
    ("calls counted as those of a bucket", shots, planted::CALLS_OF_BUCKET),
    // CTAs that a bucket has for others.
    ("CTAs without packets not counted", protocols, &[("@ll.advance", "threadIdx.x == 0 => threadIdx.x == 0 && blockIdx.x * kWarp < Shards::vecs(ctx)")]),
];

#[test]
fn every_mutation_of_buckets_is_found() {
    all_mutations_are_found(MUTATIONS, SEEDS);
}
