//! Tests of `dispatch_gemm` and `combine` on several nodes: results under many kinds of routing, invalid operands, an
//! absent rank, and graphs.

use mkernel::spec::{Router, Scales, Scores};
use mkernel_testing::jobs::attention::CallPattern;
use mkernel_testing::jobs::experts::{Layer, all_recover, invalid_calls};
use mkernel_testing::jobs::{Backend, WRAPPING_CALL_COUNTS, all_are_right, bad_network};

/// Returns a layer on `nodes` nodes of `local_world` ranks, without calls.
pub fn job(
    (nodes, local_world): (u32, u32),
    (experts, top_k, max_tokens): (u64, u64, u64),
) -> Layer {
    let layer = Layer::new(nodes * local_world, experts, top_k, max_tokens);
    layer.across(nodes, bad_network())
}

/// Runs layers with exactly known results, which must be right.
pub fn are_right<const N: usize>(layers: [(&str, Layer); N]) {
    for (name, layer) in &layers {
        assert!(layer.is_exact(), "{name}");
    }
    all_are_right(&layers, 1);
}

#[test]
fn layers_are_right_in_every_topology() {
    let mut alone = job((2, 1), (6, 3, 20)).mixed([&[20, 20], &[0, 20], &[20, 7]]);
    alone.comm_ctas = Some(1);
    let two = job((2, 2), (12, 3, 12)).mixed([&[12, 0, 5, 12], &[0, 0, 12, 1], &[12; 4]]);
    let three = job((3, 2), (12, 4, 6)).mixed([&[6; 6], &[0, 0, 0, 0, 0, 2], &[6, 1, 6, 0, 3, 6]]);
    let mut swiglu = two.clone();
    (swiglu.swiglu, swiglu.tile) = (true, Some((64, 256)));
    let routed = job((2, 2), (12, 2, 8)).mixed([&[8, 0, 5, 8], &[0, 0, 8, 1], &[8; 4]]);
    let routed = routed.routed(Router {
        scores: Scores::Sigmoid,
        renormalise: true,
        ..Router::default()
    });
    let odd = job((2, 3), (6, 2, 7)).mixed([&[7; 6], &[0; 6], &[7, 0, 7, 0, 7, 0]]);
    are_right([
        ("2 nodes of 1", alone),
        ("2 nodes of 2", two),
        ("SwiGLU", swiglu),
        ("3 nodes of 2", three),
        ("2 nodes of 3", odd),
        ("from logits, 2 nodes of 2", routed),
    ]);
}

/// Ranks put and forward tokens with their scales. A rank with room for few tokens copies tokens once more.
#[test]
fn layers_of_e4m3_are_right() {
    let scaled = |nodes, scales| job(nodes, (12, 3, 12)).scaled(scales);
    let alone = scaled((2, 1), Scales::Block).mixed([&[12, 12], &[0, 12], &[12, 7]]);
    let two = scaled((2, 2), Scales::Row).mixed([&[12, 0, 5, 12], &[0, 0, 12, 1], &[12; 4]]);
    let mut swiglu =
        scaled((2, 2), Scales::Block).mixed([&[12, 0, 5, 12], &[0, 0, 12, 1], &[12; 4]]);
    (swiglu.swiglu, swiglu.tile) = (true, Some((64, 256)));
    (swiglu.hidden, swiglu.intermediate) = (80, 136);
    let mut few =
        scaled((3, 2), Scales::Block).mixed([&[12; 6], &[0, 0, 0, 0, 0, 2], &[6, 1, 6, 0, 3, 6]]);
    (few.max_rows, few.puts) = (Some(80), Some((2, 1)));
    let tensor = scaled((2, 2), Scales::Tensor).mixed([&[12, 0, 5, 12], &[0, 0, 12, 1], &[12; 4]]);
    are_right([
        ("blocks, 2 nodes of 1", alone),
        ("rows, 2 nodes of 2", two),
        ("blocks, SwiGLU", swiglu),
        ("blocks, acknowledged chunks", few),
        ("tensors", tensor),
    ]);
}

/// The results stay right while the call count passes 2^31 or 2^32.
#[test]
fn layers_are_right_after_many_calls() {
    let [half, whole] = WRAPPING_CALL_COUNTS;
    are_right([
        ("2^31, 2x1", job((2, 1), (6, 3, 20)).with_call_count(half)),
        ("2^32, 2x1", job((2, 1), (6, 3, 20)).with_call_count(whole)),
        ("2^31, 2x2", job((2, 2), (12, 3, 12)).with_call_count(half)),
        ("2^32, 3x2", job((3, 2), (12, 4, 6)).with_call_count(whole)),
    ]);
}

/// All tokens have the same experts, ranks have no tokens, every token goes to all experts, and no token leaves its
/// node.
#[test]
fn extreme_routing_is_right() {
    let one = job((2, 2), (8, 2, 16))
        .call(&[16; 4], |_, _| vec![5, 4])
        .call(&[0; 4], |_, _| Vec::new())
        .call(&[16; 4], |rank, _| {
            vec![rank as i32 * 2, 7 - rank as i32 * 2]
        });
    let everywhere = job((2, 2), (4, 4, 9)).call(&[9, 2, 0, 9], |rank, token| {
        (0..4).map(|j| ((rank + token + j) % 4) as i32).collect()
    });
    let near = job((2, 2), (8, 2, 10))
        .call(&[10; 4], |rank, token| {
            let first = rank as i32 / 2 * 4;
            vec![first + (token % 4) as i32, first + (token as i32 + 1) % 4]
        })
        .call(&[10; 4], |rank, token| {
            vec![
                4 - rank as i32 / 2 * 4 + (token % 4) as i32,
                rank as i32 * 2,
            ]
        });
    are_right([
        ("one pair", one),
        ("all experts", everywhere),
        ("near, then far", near),
    ]);
}

/// Some choices, all choices of some tokens and all choices of a rank are missing, and their weights are NaN.
#[test]
fn tokens_without_some_or_any_of_their_choices_are_right() {
    let alone = job((2, 1), (6, 3, 20)).mixed([&[20, 20], &[20, 20], &[20, 7]]);
    let two = job((2, 2), (12, 3, 12)).mixed([&[12, 0, 5, 12], &[12, 9, 12, 1], &[12; 4]]);
    let mut bounded = two.clone();
    bounded.max_rows = Some(80);
    let three = job((3, 2), (12, 4, 6)).mixed([&[6; 6], &[6, 0, 0, 0, 0, 2], &[6, 1, 6, 0, 3, 6]]);
    let mut in_graph = two.clone();
    in_graph.pattern = CallPattern::Graph;
    let none = job((2, 2), (8, 2, 9))
        .call(&[9; 4], |_, _| vec![-1, -1])
        .call(&[9, 3, 9, 9], |rank, _| vec![-1, 7 - rank as i32])
        .call(&[9; 4], |_, _| vec![-1, -1]);
    are_right([
        ("2 nodes of 1", alone.padded()),
        ("2 nodes of 2", two.padded()),
        ("bounded rows", bounded.padded()),
        ("3 nodes of 2", three.padded()),
        ("graph", in_graph.padded()),
        ("no choice at all", none),
    ]);
}

/// Tokens are longer than a slot of shared memory, and need more than one put.
#[test]
fn tokens_in_several_puts_are_right() {
    let mut long = job((2, 1), (4, 2, 70));
    long.hidden = 8200;
    long.intermediate = 8;
    long.comm_ctas = Some(2);
    let long = long.mixed([&[70, 3], &[0; 2], &[1, 70]]);
    let mut wide = job((2, 1), (4, 2, 70));
    wide.hidden = 8;
    wide.intermediate = 8200;
    let wide = wide.mixed([&[70, 3], &[0; 2], &[1, 70]]);
    are_right([("long tokens", long), ("long rows", wide)]);
}

/// Runs the layer, which must fail on every rank with an error that contains all `parts`.
fn fails(job: &Layer, parts: &[&str]) {
    for (rank, outcome) in job.run_ranks(0).into_iter().enumerate() {
        let failure = outcome.expect_err("a fault");
        assert!(!failure.contains("simulator found"), "{failure}");
        for part in parts {
            assert!(
                failure.contains(part),
                "rank {rank}: {part:?} in {failure:?}"
            );
        }
    }
}

/// Every rank gets an error that names the invalid entry, although later calls have been launched.
#[test]
fn invalid_experts_are_named_on_every_node() {
    let wrong = |expert: i32| {
        let right = |_, token: usize| vec![(token % 4) as i32, 4 + (token % 4) as i32];
        job((2, 2), (8, 2, 9))
            .call(&[9; 4], move |rank, token| match (rank, token) {
                (1, 6) => vec![3, expert],
                _ => right(rank, token),
            })
            .call(&[9, 0, 9, 9], right)
            .call(&[9; 4], right)
    };
    fails(&wrong(8), &["rank 1, call 1", "token 6", "expert 8"]);
    fails(&wrong(-2), &["rank 1, call 1", "token 6", "expert -2"]);
    fails(
        &wrong(3),
        &["rank 1, call 1", "token 6", "expert 3 twice", "choice 1"],
    );
}

#[test]
fn more_rows_than_max_rows_are_an_error() {
    let mut full = job((2, 2), (8, 1, 10)).call(&[10; 4], |_, _| vec![5]);
    full.max_rows = Some(37);
    fails(
        &full,
        &["rank 2, call 1", "40 rows", "max_rows is 37", "3 too few"],
    );
}

/// Every rank gets the error of an invalid call once, and the next call is right.
#[test]
fn calls_after_invalid_calls_are_right() {
    let new = || job((2, 2), (8, 2, 9));
    let right = |rank: usize, token: usize| vec![(token % 4) as i32, 4 + (rank + token) as i32 % 4];
    let place = Backend::Simulated { seed: 1 };
    let choice = new()
        .call(&[9, 0, 9, 4], move |rank, token| match (rank, token) {
            (2, 6) => vec![3, 8],
            _ => right(rank, token),
        })
        .call(&[9, 3, 0, 9], right);
    let replayed = &invalid_calls(false)[3..];
    all_recover(
        &choice,
        place,
        replayed,
        &["rank 2, call 1", "token 6", "expert 8"],
    );
    let mut rows = job((2, 2), (8, 1, 10));
    rows.max_rows = Some(37);
    let rows = rows.call(&[10; 4], |_, _| vec![5]);
    let rows = rows.call(&[10, 9, 9, 9], |_, _| vec![5]);
    all_recover(
        &rows,
        place,
        &invalid_calls(false)[..1],
        &["rank 2, call 1", "40 rows", "max_rows is 37"],
    );
    let places = new().call(&[9; 4], right).call(&[9, 1, 2, 9], right);
    all_recover(
        &places,
        place,
        &invalid_calls(true)[1..2],
        &["rank 0, call 1", "choice 1 of token 0"],
    );
}

/// Ranks abort at their deadlines, or when the close message of the absent rank arrives. Ranks send no token before all ranks
/// have begun the call.
#[test]
fn an_absent_rank_ends_the_calls_of_all() {
    for absent in [0, 3] {
        let mut layer = job((2, 2), (8, 2, 9)).mixed([&[9; 4]; 3]);
        layer.pattern = CallPattern::AbsentRank { rank: absent };
        for (rank, outcome) in (0..).zip(layer.run_ranks(1)) {
            let is_right = match &outcome {
                Ok(_) => rank == absent,
                Err(error) => {
                    error.contains("was waiting for") || error.contains(&format!("rank {absent}"))
                }
            };
            assert!(is_right, "rank {rank} without {absent}: {outcome:?}");
        }
    }
}

/// The ranks pause for random times, or replay a graph with other tokens and experts each time.
#[test]
fn calls_out_of_step_and_in_graphs_are_right() {
    are_right([CallPattern::OutOfStep, CallPattern::Graph].map(|pattern| {
        let mut layer = job((2, 2), (8, 2, 12));
        layer.pattern = pattern;
        let layer = layer.random(&[12; 4], true);
        let layer = layer.mixed([&[12, 0, 5, 12], &[0; 4], &[3, 12, 0, 1]]);
        ("paced", layer.random(&[12; 4], false))
    }));
}
