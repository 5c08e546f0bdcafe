//! Tests of operators with buckets, on simulated GPUs: calls that change from one bucket to another, in a graph and launched.

use mkernel::spec::plan::{Body, GemmPlan};
use mkernel::spec::{Device, KernelPlan, SizedSpec};
use mkernel_testing::jobs::gemm::buckets::{in_buckets, in_buckets_across};
use mkernel_testing::jobs::{all_are_right_now_or_after_many_calls, bad_network, named};
use std::fmt::Debug;

#[test]
fn calls_may_change_buckets() {
    all_are_right_now_or_after_many_calls(&in_buckets(2));
}

#[test]
fn calls_may_change_buckets_on_several_nodes() {
    all_are_right_now_or_after_many_calls(&in_buckets_across(2, 2, &bad_network()));
}

/// The other tests of this file need jobs whose buckets have different plans, and the cost model chooses the plans.
#[test]
fn buckets_of_the_jobs_have_different_plans() {
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
