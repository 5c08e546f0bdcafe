//! Tests of `ag_gemm` with A in symmetric memory, from which NICs send A directly: shards of whole tiles, tiles that straddle
//! shards, ranks without rows, and rows at run time. All calls take A from one tensor, which is written again after each call.

use crate::jobs;
use mkernel::spec::GemmOp;
use mkernel_testing::jobs::gemm::cases::with_rows_across;
use mkernel_testing::jobs::{
    all_are_right_now_or_after_many_calls, bad_network, each_in_one, share,
};

#[test]
fn shards_are_sent_in_place() {
    let jobs = share(jobs(GemmOp::AgGemm), "", (0, 2)).into_iter();
    let jobs = jobs.map(|(name, job)| (format!("{name}, in place"), job.with_symmetric_a()));
    all_are_right_now_or_after_many_calls(&jobs.collect::<Vec<_>>());
}

#[test]
fn shards_of_any_rows_are_sent_in_place() {
    let jobs = each_in_one(&[(2, 1), (2, 2), (3, 1)], |(nodes, local)| {
        let mut jobs = with_rows_across(nodes, local, &bad_network());
        jobs.retain(|(_, job)| job.config.op == GemmOp::AgGemm);
        jobs
    });
    let jobs = jobs.into_iter();
    let jobs = jobs.map(|(name, job)| (name, job.with_symmetric_a()));
    let jobs = jobs.flat_map(|(name, job)| {
        [
            (format!("{name}, in a graph"), job.clone().in_graph()),
            (name, job),
        ]
    });
    all_are_right_now_or_after_many_calls(&jobs.collect::<Vec<_>>());
}
