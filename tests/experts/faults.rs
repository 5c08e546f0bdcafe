//! Tests of calls with invalid operands, and of ranks that make no call: every rank gets an error that names the mistake,
//! and the next call is right.

use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::attention::CallPattern;
use mkernel_testing::jobs::experts::{Layer, invalid_calls};

/// Runs the layer, which must fail on every rank with an error that contains all `parts`.
fn fails(layer: &Layer, parts: &[&str]) {
    for seed in 0..3 {
        for (rank, result) in layer.run_ranks(seed).into_iter().enumerate() {
            let failure = result.expect_err("a fault");
            assert!(!failure.contains("simulator found"), "{failure}");
            for part in parts {
                assert!(
                    failure.contains(part),
                    "rank {rank}: {part:?} in {failure:?}"
                );
            }
        }
    }
}

/// Returns a layer in which only entry 1 of token 6 of rank 1 is invalid: its expert is `expert`.
fn with_expert(expert: i32) -> Layer {
    Layer::new(4, 8, 2, 9).call(&[9; 4], move |rank, token| match (rank, token) {
        (1, 6) => vec![3, expert],
        _ => vec![(token % 4) as i32, 4 + (token % 4) as i32],
    })
}

#[test]
fn an_expert_that_does_not_exist_is_an_error() {
    fails(
        &with_expert(8),
        &[
            "rank 1, call 1",
            "token 6",
            "expert 8",
            "choice 1",
            "0 to 7",
        ],
    );
    fails(
        &with_expert(-2),
        &["rank 1, call 1", "token 6", "expert -2", "-1"],
    );
    fails(&with_expert(i32::MIN), &["rank 1, call 1", "token 6"]);
}

#[test]
fn a_duplicate_expert_of_a_token_is_an_error() {
    fails(
        &with_expert(3),
        &["rank 1, call 1", "token 6", "expert 3 twice", "choice 1"],
    );
}

#[test]
fn a_number_of_tokens_out_of_range_is_an_error() {
    for count in [10, -1] {
        let mut layer = with_expert(7);
        layer.num_tokens = Some(count);
        let text = format!("the number of tokens is {count}");
        fails(&layer, &["call 1", &text, "0 to 9"]);
    }
}

#[test]
fn more_rows_than_max_rows_are_an_error() {
    let mut layer = Layer::new(2, 4, 1, 10);
    layer.max_rows = Some(17);
    // Rank 1 has room for 17 of 20 rows.
    let layer = layer.call(&[10, 10], |_, _| vec![2]);
    fails(
        &layer,
        &["rank 1, call 1", "20 rows", "3 too few", "max_rows is 17"],
    );
}

/// Makes each kind of invalid call, and a valid call after it.
fn all_recover(layer: &Layer, in_combine: bool, parts: &[&str]) {
    for (seed, call) in (0..).zip(invalid_calls(in_combine)) {
        mkernel_testing::jobs::experts::all_recover(
            layer,
            Backend::Simulated { seed },
            &[call],
            parts,
        );
    }
}

/// Returns valid experts of a token.
fn valid_experts(rank: usize, token: usize) -> Vec<i32> {
    vec![((rank + token) % 4) as i32, 4 + (token % 4) as i32]
}

#[test]
fn the_call_after_an_invalid_expert_is_right() {
    let layer = with_expert(8).call(&[9, 0, 9, 4], valid_experts);
    all_recover(&layer, false, &["rank 1, call 1", "token 6", "expert 8"]);
}

#[test]
fn the_call_after_too_many_rows_is_right() {
    let mut layer = Layer::new(2, 4, 1, 10);
    layer.max_rows = Some(17);
    let layer = layer.call(&[10, 10], |_, _| vec![2]);
    let layer = layer.call(&[10, 7], |_, token| vec![(token % 4) as i32]);
    all_recover(
        &layer,
        false,
        &["rank 1, call 1", "20 rows", "max_rows is 17"],
    );
}

#[test]
fn the_call_after_an_invalid_row_index_is_right() {
    let layer = Layer::new(2, 4, 2, 10);
    let layer = layer.call(&[10, 10], |_, token| vec![(token % 2) as i32, 2]);
    let layer = layer.call(&[9, 10], |rank, token| {
        vec![(token % 2) as i32, 2 + rank as i32]
    });
    all_recover(
        &layer,
        true,
        &["rank 0, call 1", "choice 1 of token 0", "2147483647"],
    );
}

/// An invalid call whose error the host has not read yet does not hide the timeout of a later call.
#[test]
fn an_unread_fault_does_not_hide_a_timeout() {
    let mut layer = with_expert(8).call(&[9; 4], valid_experts);
    layer.pattern = CallPattern::AbsentFromLastCall { rank: 1 };
    let outcomes = layer.run_ranks(0);
    let failure = outcomes[0].as_ref().expect_err("rank 1 is absent");
    assert!(failure.contains("rank 1;"), "{failure}");
}

#[test]
fn an_absent_rank_is_named() {
    let mut layer = Layer::new(2, 4, 1, 10).mixed([&[10, 10], &[10, 10], &[10, 10]]);
    layer.pattern = CallPattern::AbsentRank { rank: 1 };
    let outcomes = layer.run_ranks(0);
    let failure = outcomes[0].as_ref().expect_err("rank 1 is absent");
    assert!(
        failure.contains("a peer's token counts") && failure.contains("rank 1;"),
        "{failure}"
    );
    assert_eq!(outcomes[1], Ok(Vec::new()));
}
