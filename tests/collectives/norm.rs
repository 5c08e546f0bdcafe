//! Tests of `all_reduce` with a norm on simulated GPUs.

use mkernel_testing::jobs::collective::norm::cases::{normalised, normalised_across};
use mkernel_testing::jobs::collective::norm::quantised::{quantised, quantised_across};
use mkernel_testing::jobs::{
    all_are_right, all_are_right_now_or_after_many_calls, bad_network, each_in_one,
};

#[test]
fn norms_are_right_on_one_node() {
    let jobs = [normalised(1), each_in_one(&[2, 4], normalised)].concat();
    all_are_right_now_or_after_many_calls(&jobs);
}

/// Calls of none to the most rows, with every protocol. Tests on four ranks cover the other jobs.
#[test]
fn norms_are_right_on_eight_ranks() {
    let mut jobs = normalised(8);
    jobs.retain(|(name, _)| name.contains("rows at run time"));
    all_are_right(&jobs, 1);
}

#[test]
fn norms_are_right_on_several_nodes() {
    let jobs = each_in_one(&[(2, 1), (2, 2), (3, 1)], |(nodes, local)| {
        normalised_across(nodes, local, &bad_network())
    });
    all_are_right_now_or_after_many_calls(&jobs);
}

/// Every bit of elements of e4m3 and of their scales is what another kernel would make of the result without scales.
#[test]
fn normalised_rows_of_e4m3_are_right() {
    let one_node = [quantised(1), each_in_one(&[2, 4], quantised)].concat();
    let across = each_in_one(&[(2, 1), (2, 2), (3, 1)], |(nodes, local)| {
        quantised_across(nodes, local, &bad_network())
    });
    all_are_right_now_or_after_many_calls(&[one_node, across].concat());
}
