//! Tests of GEMM operators that take the rows of each call at run time, on simulated GPUs. Every bit of the results is known.

mod alone;
mod buckets;
mod chain;
mod mistakes;

use mkernel_testing::jobs::gemm::cases::{with_rows, with_rows_across};
use mkernel_testing::jobs::{
    all_are_right, all_are_right_now_or_after_many_calls, bad_network, each_in_one, share,
};

/// One operator serves calls of any number of rows.
#[test]
fn rows_may_change_from_call_to_call() {
    let one = share(with_rows(1), "", (0, 3));
    let jobs = [one, each_in_one(&[2, 4], with_rows)].concat();
    all_are_right_now_or_after_many_calls(&jobs);
}

/// Eight ranks relay sums in other parts than four ranks. One job of each other exchange suffices, since four ranks cover all
/// other paths.
#[test]
fn rows_may_change_on_eight_ranks() {
    let mut jobs = with_rows(8);
    let kinds = ["pushed by all", "results in rounds", "packets"];
    jobs.retain(|(name, _)| kinds.iter().any(|kind| name.contains(kind)));
    all_are_right(&share(jobs, "", (0, 3)), 1);
}

#[test]
fn rows_may_change_on_several_nodes() {
    let jobs = each_in_one(&[(2, 1), (2, 2), (3, 1)], |(nodes, local)| {
        with_rows_across(nodes, local, &bad_network())
    });
    all_are_right_now_or_after_many_calls(&jobs);
}
