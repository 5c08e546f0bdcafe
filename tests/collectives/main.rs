//! Tests of `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast` and `all_to_all` on simulated GPUs. Every bit of the results is known.

mod buckets;
mod gemm_norm;
mod in_place;
mod late;
mod nan;
mod norm;
mod quantised;
mod rows;
mod scaled;
mod symmetric;

use mkernel_testing::jobs::collective::CollectiveJob;
use mkernel_testing::jobs::collective::cases::{
    across, small, symmetric as in_symmetric_memory, symmetric_across, with_rows, with_rows_across,
};
use mkernel_testing::jobs::{
    all_are_right, all_are_right_now_or_after_many_calls, bad_network, each_in_one,
};

#[test]
fn collectives_are_right_on_one_node() {
    let jobs = [small(1), each_in_one(&[2, 4], small)].concat();
    all_are_right_now_or_after_many_calls(&jobs);
}

/// Returns the jobs whose names contain one of these parts. Tests on four ranks cover the other jobs.
fn on_eight(
    mut jobs: Vec<(String, CollectiveJob)>,
    parts: &[&str],
) -> Vec<(String, CollectiveJob)> {
    jobs.retain(|(name, _)| parts.iter().any(|part| name.contains(part)));
    assert!(jobs.len() >= parts.len(), "{parts:?}");
    jobs
}

#[test]
fn collectives_are_right_on_eight_ranks() {
    let jobs = on_eight(
        small(8),
        &[
            "one shot, long",
            "two shots, two vectors",
            "a row in packets",
            "rows of sums in packets",
            "a short chunk",
            "rows in chunks",
            "a row of sums in chunks",
            "exchange in chunks on",
            "exchange of few rows",
        ],
    );
    all_are_right(&jobs, 1);
}

#[test]
fn collectives_are_right_on_several_nodes() {
    let nodes = [(2, 1), (2, 2), (3, 1), (3, 2)];
    let jobs = each_in_one(&nodes, |(nodes, local)| {
        across(nodes, local, &bad_network())
    });
    all_are_right_now_or_after_many_calls(&jobs);
}

/// One operator serves calls of any number of rows.
#[test]
fn rows_may_change_from_call_to_call() {
    let eight = [
        "two shots on",
        "rows in packets",
        "chunks on",
        "all_to_all in packets",
    ];
    let across = each_in_one(&[(2, 1), (2, 2), (3, 1)], |(nodes, local)| {
        with_rows_across(nodes, local, &bad_network())
    });
    let eight = on_eight(with_rows(8), &eight);
    let jobs = [with_rows(1), each_in_one(&[2, 4], with_rows), eight, across].concat();
    all_are_right_now_or_after_many_calls(&jobs);
}

/// Ranks store straight to each other's results.
#[test]
fn results_in_symmetric_memory_are_right() {
    let one = in_symmetric_memory(1);
    let several = each_in_one(&[2, 4], in_symmetric_memory);
    let eight = ["sums of rows", "rows of rows in", "exchange of rows"];
    let eight = on_eight(in_symmetric_memory(8), &eight);
    let across = each_in_one(&[(2, 1), (2, 2)], |(nodes, local)| {
        symmetric_across(nodes, local, &bad_network())
    });
    all_are_right_now_or_after_many_calls(&[one, several, eight, across].concat());
}
