//! Tests of collectives with buckets, on simulated GPUs: calls that change from one bucket to another, in a graph and launched.

use mkernel::spec::{Device, KernelPlan, SizedSpec};
use mkernel_testing::jobs::collective::buckets::{in_buckets, normalised_in_buckets};
use mkernel_testing::jobs::{all_are_right_now_or_after_many_calls, each_in_one};

#[test]
fn calls_may_change_buckets() {
    // Four ranks have one more job, which comes last.
    let mut jobs = in_buckets(4);
    let shots = jobs.split_off(in_buckets(2).len());
    let others = |world| in_buckets(world).into_iter().take(jobs.len()).collect();
    all_are_right_now_or_after_many_calls(&[each_in_one(&[2, 4], others), shots].concat());
}

#[test]
fn calls_of_norms_may_change_buckets() {
    let worlds = [2, 4].into_iter().flat_map(normalised_in_buckets);
    all_are_right_now_or_after_many_calls(&worlds.collect::<Vec<_>>());
}

/// The other tests of this file need jobs with several buckets.
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
