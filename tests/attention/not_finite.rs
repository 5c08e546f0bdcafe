//! Tests of NaN and infinity in K and V. They reach no query of an earlier tile, chunk or packed sequence, in all plans.

use mkernel::spec::Placement::{Contiguous, Zigzag};
use mkernel_testing::jobs::attention::cases::{first_of_last_chunk, not_finite_rows};
use mkernel_testing::jobs::attention::{AttentionJob, InputKind};
use mkernel_testing::jobs::{Backend, all_are_right, bad_network, none_fails};

/// Runs each job with all plans, whose results must have equal bits.
fn all_plans_agree(jobs: &[(String, AttentionJob)]) {
    none_fails(jobs, |(name, job)| {
        let agree = job.run_all_plans(Backend::Simulated { seed: 0 });
        agree.map_err(|failure| format!("{name}: {failure}"))
    });
}

#[test]
fn rows_that_are_not_finite_reach_no_earlier_query_on_one_rank() {
    all_are_right(&not_finite_rows(1), 1);
}

#[test]
fn rows_that_are_not_finite_reach_no_earlier_query_on_two_ranks() {
    all_plans_agree(&not_finite_rows(2));
}

#[test]
fn rows_that_are_not_finite_reach_no_earlier_query_across_nodes() {
    let job = |nodes, local_world| {
        let world = nodes * local_world;
        let job = AttentionJob::new(world, [1, 300, 3, 3, 64], 3).causal(Zigzag);
        let row = first_of_last_chunk(300, 2 * world);
        let job = job.inputs(InputKind::NotFiniteRow(row)).pushed_by(2);
        let name = format!("on {nodes}x{local_world}");
        (name, job.across(nodes, bad_network()))
    };
    all_plans_agree(&[job(2, 2)]);
}

/// The values of every second sequence, and all values behind the last sequence, are NaN.
#[test]
fn rows_that_are_not_finite_reach_no_other_packed_sequence() {
    let job = |world, placement, row| {
        let job = AttentionJob::new(world, [5, 400, 3, 3, 64], 3).causal(placement);
        let job = job.inputs(InputKind::NotFiniteRow(row));
        let job = job.with_sequences(&[&[100, 9, 150, 20, 61], &[60, 1, 3]]);
        (format!("{placement:?} on {world} ranks"), job)
    };
    // The row is the first row of a tile of the longest sequence.
    let row = first_of_last_chunk(150, 4);
    all_are_right(&[job(1, Contiguous, 128), job(2, Zigzag, row)], 1);
}
