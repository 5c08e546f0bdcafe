//! Tests of `all_reduce`, `all_gather` and `reduce_scatter` on simulated GPUs. Every bit of the results is known.

mod buckets;
mod gemm_norm;
mod in_place;
mod late;
mod mutations;
mod nan;
mod norm;
mod rows;
mod symmetric;

use mkernel_testing::jobs::collective::cases::{
    across, small, symmetric as in_symmetric_memory, symmetric_across, with_rows, with_rows_across,
};
use mkernel_testing::jobs::{all_are_right, all_are_right_now_or_after_many_calls, bad_network};

#[test]
fn collectives_are_right_on_one_node() {
    let worlds = [1, 2, 4].into_iter();
    all_are_right_now_or_after_many_calls(&worlds.flat_map(small).collect::<Vec<_>>());
}

#[test]
fn collectives_are_right_on_eight_ranks() {
    all_are_right(&small(8), 1);
}

#[test]
fn collectives_are_right_on_several_nodes() {
    let nodes = [(2, 1), (2, 2), (3, 1), (3, 2)];
    let jobs = nodes
        .into_iter()
        .flat_map(|(nodes, local_world)| across(nodes, local_world, &bad_network()));
    all_are_right_now_or_after_many_calls(&jobs.collect::<Vec<_>>());
}

/// One operator serves calls of any number of rows.
#[test]
fn rows_may_change_from_call_to_call() {
    let worlds = [1, 2, 4, 8].into_iter().flat_map(with_rows);
    let across = [(2, 1), (2, 2), (3, 1)].into_iter();
    let across = across.flat_map(|(nodes, local)| with_rows_across(nodes, local, &bad_network()));
    all_are_right_now_or_after_many_calls(&worlds.chain(across).collect::<Vec<_>>());
}

/// Ranks store straight to each other's results.
#[test]
fn results_in_symmetric_memory_are_right() {
    let worlds = [1, 2, 4, 8].into_iter().flat_map(in_symmetric_memory);
    let across = [(2, 1), (2, 2)].into_iter();
    let across = across.flat_map(|(nodes, local)| symmetric_across(nodes, local, &bad_network()));
    all_are_right_now_or_after_many_calls(&worlds.chain(across).collect::<Vec<_>>());
}
