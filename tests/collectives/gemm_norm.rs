//! Tests of `gemm_ar` and `gemm_rs` with a norm on simulated GPUs.

use mkernel::spec::Scales;
use mkernel_testing::jobs::gemm::norm::{GemmNormJob, normalised, normalised_by_owners, quantised};
use mkernel_testing::jobs::{all_are_right, all_are_right_now_or_after_many_calls, each_in_one};

#[test]
fn norms_of_products_are_right() {
    all_are_right_now_or_after_many_calls(&each_in_one(&[1, 2, 4], normalised));
}

#[test]
fn norms_of_relayed_sums_are_right() {
    let relayed = relayed();
    let rows = relayed.clone().with_rows(&[64, 3, 0, 17]);
    let blocks = relayed.clone().quantised(Scales::Block);
    let jobs = [
        ("relayed in blocks of e4m3", blocks),
        ("relayed in place", relayed.in_place().activated()),
        ("relayed rows at run time", rows),
    ];
    all_are_right(&jobs, 1);
}

#[test]
fn norms_in_two_shots_are_right() {
    all_are_right_now_or_after_many_calls(&each_in_one(&[1, 2, 4], normalised_by_owners));
}

#[test]
fn norms_of_products_become_e4m3() {
    let of_world = |world| [quantised::in_one_shot(world), quantised::by_owners(world)].concat();
    all_are_right_now_or_after_many_calls(&each_in_one(&[1, 2, 4], of_world));
}

/// Ranks add up rows of their own and relay the sums.
fn relayed() -> GemmNormJob {
    GemmNormJob::new(8, (64, 1536, 64), 4)
}
