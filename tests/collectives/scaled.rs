//! Tests of rows of e4m3 and their scales, which `all_gather`, `broadcast` and `all_to_all` move on simulated GPUs.

use mkernel_testing::jobs::collective::scaled::cases::{scaled, scaled_across};
use mkernel_testing::jobs::{all_are_right_now_or_after_many_calls, bad_network, each_in_one};

#[test]
fn rows_with_scales_are_right() {
    let one_node = [scaled(1), each_in_one(&[2, 4], scaled)].concat();
    let across = each_in_one(&[(2, 1), (2, 2)], |(nodes, local)| {
        scaled_across(nodes, local, &bad_network())
    });
    all_are_right_now_or_after_many_calls(&[one_node, across].concat());
}
