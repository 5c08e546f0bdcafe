//! What is wrong with tokens becomes an error on every rank, which names it.

use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::attention::CallPattern;
use mkernel_testing::jobs::experts::{Layer, invalid_calls};

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

/// All is right but choice 1 of token 6 of rank 1.
fn wrong_choice(expert: i32) -> Layer {
    Layer::new(4, 8, 2, 9).call(&[9; 4], move |rank, token| match (rank, token) {
        (1, 6) => vec![3, expert],
        _ => vec![(token % 4) as i32, 4 + (token % 4) as i32],
    })
}

#[test]
fn an_expert_that_is_none() {
    fails(
        &wrong_choice(8),
        &[
            "rank 1, call 1",
            "token 6",
            "expert 8",
            "choice 1",
            "0 to 7",
        ],
    );
    fails(
        &wrong_choice(-1),
        &["rank 1, call 1", "token 6", "expert -1"],
    );
    fails(&wrong_choice(i32::MIN), &["rank 1, call 1", "token 6"]);
}

#[test]
fn an_expert_twice() {
    fails(
        &wrong_choice(3),
        &["rank 1, call 1", "token 6", "expert 3 twice", "choice 1"],
    );
}

#[test]
fn more_tokens_than_declared_or_less_than_none() {
    for count in [10, -1] {
        let mut layer = wrong_choice(7);
        layer.num_tokens = Some(count);
        let text = format!("the number of tokens is {count}");
        fails(&layer, &["call 1", &text, "0 to 9"]);
    }
}

#[test]
fn more_rows_than_room() {
    let mut layer = Layer::new(2, 4, 1, 10);
    layer.max_rows = Some(17);
    // Rank 1 has room for 17 of 20.
    let layer = layer.call(&[10, 10], |_, _| vec![2]);
    fails(
        &layer,
        &["rank 1, call 1", "20 rows", "3 too few", "max_rows is 17"],
    );
}

fn all_recover(layer: &Layer, is_place: bool, parts: &[&str]) {
    for (seed, way) in (0..).zip(invalid_calls(is_place)) {
        mkernel_testing::jobs::experts::all_recover(
            layer,
            Backend::Simulated { seed },
            &[way],
            parts,
        );
    }
}

fn right_choices(rank: usize, token: usize) -> Vec<i32> {
    vec![((rank + token) % 4) as i32, 4 + (token % 4) as i32]
}

#[test]
fn a_call_after_an_expert_that_is_none() {
    let layer = wrong_choice(8).call(&[9, 0, 9, 4], right_choices);
    all_recover(&layer, false, &["rank 1, call 1", "token 6", "expert 8"]);
}

#[test]
fn a_call_after_more_rows_than_room() {
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
fn a_call_after_a_place_that_is_none() {
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

/// One that nobody has read yet.
#[test]
fn a_fault_hides_no_time_out() {
    let mut layer = wrong_choice(8).call(&[9; 4], right_choices);
    layer.pattern = CallPattern::AbsentFromLastCall { rank: 1 };
    let said = layer.run_ranks(0);
    let failure = said[0].as_ref().expect_err("nobody came");
    assert!(failure.contains("rank 1;"), "{failure}");
}

#[test]
fn a_rank_that_does_not_come() {
    let mut layer = Layer::new(2, 4, 1, 10).mixed([&[10, 10], &[10, 10], &[10, 10]]);
    layer.pattern = CallPattern::AbsentRank { rank: 1 };
    let said = layer.run_ranks(0);
    let failure = said[0].as_ref().expect_err("nobody came");
    assert!(
        failure.contains("a peer's token counts") && failure.contains("rank 1;"),
        "{failure}"
    );
    assert_eq!(said[1], Ok(Vec::new()));
}
