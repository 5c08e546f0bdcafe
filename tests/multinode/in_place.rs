//! Tests of `ag_gemm` whose A lies in symmetric memory, from where NICs send it: shards of whole tiles, tiles that straddle
//! shards, ranks without rows, and rows at run time. All calls take their A from one tensor, which is written again behind each.

use crate::{job, jobs, one_comm_cta};
use mkernel::spec::GemmOp;
use mkernel_testing::jobs::gemm::cases::with_rows_across;
use mkernel_testing::jobs::{
    GemmJob, Mutation, all_are_right_now_or_after_many_calls, all_mutations_are_found, bad_network,
};

/// The number of seeds with which a mutation must be found.
const SEEDS: u64 = 40;

#[test]
fn shards_are_sent_in_place() {
    let jobs = jobs(GemmOp::AgGemm).into_iter();
    let jobs = jobs.map(|(name, job)| (format!("{name}, in place"), job.with_symmetric_a()));
    all_are_right_now_or_after_many_calls(&jobs.collect::<Vec<_>>());
}

#[test]
fn shards_of_any_rows_are_sent_in_place() {
    let nodes = [(2, 1), (2, 2), (3, 1)].into_iter();
    let jobs = nodes.flat_map(|(nodes, local)| with_rows_across(nodes, local, &bad_network()));
    let jobs = jobs.filter(|(_, job)| job.config.op == GemmOp::AgGemm);
    let jobs = jobs.map(|(name, job)| (name, job.with_symmetric_a()));
    let jobs = jobs.flat_map(|(name, job)| {
        [
            (format!("{name}, in a graph"), job.clone().in_graph()),
            (name, job),
        ]
    });
    all_are_right_now_or_after_many_calls(&jobs.collect::<Vec<_>>());
}

fn in_place() -> GemmJob {
    let (_, job) = job(GemmOp::AgGemm, (2, 2), (1024, 64, 128), one_comm_cta());
    job.with_symmetric_a()
}

/// Only the first rank has rows. It waits for nothing else, so it is done long before its rows are sent.
fn one_row() -> GemmJob {
    let (_, job) = job(GemmOp::AgGemm, (2, 1), (1, 64, 128), one_comm_cta());
    job.with_symmetric_a()
}

#[rustfmt::skip]
const MUTATIONS: &[Mutation] = &[
    ("a call that ends before its rows are sent", one_row, &[("@push.sent", "")]),
    ("the first rows sent for all", in_place, &[("@push.place", "u64{first} => u64{0}")]),
    ("rows sent to another slot", in_place, &[("@push.put-slot", "ctx.parity(), row => ctx.parity(), 0")]),
];

#[test]
fn every_mutation_is_found() {
    all_mutations_are_found(MUTATIONS, SEEDS);
}
