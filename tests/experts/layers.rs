//! Tests that layers of experts are right: skewed ranks, ranks without tokens, experts without rows,
//! and an expert with all rows.

use mkernel::network::Faults;
use mkernel::spec::Dtype;
use mkernel_testing::jobs::attention::CallPattern;
use mkernel_testing::jobs::experts::Layer;
use mkernel_testing::jobs::{WRAPPING_CALL_COUNTS, each_in_one, share};

/// Runs the layer with `seeds` seeds. All results must be right and have equal bits.
pub fn check(name: &str, layer: &Layer, seeds: u64) {
    assert!(layer.is_exact(), "{name}");
    let mut first = None;
    for seed in 0..seeds {
        let results: Result<Vec<_>, _> = layer.run_ranks(seed).into_iter().collect();
        let bits = results.unwrap_or_else(|failure| panic!("{name}, seed {seed}: {failure}"));
        let same = first.get_or_insert_with(|| bits.clone()) == &bits;
        assert!(same, "{name}, seed {seed}: other bits than before");
    }
}

#[test]
fn layers_are_right_in_every_world() {
    let one = Layer::new(1, 7, 3, 40).mixed([&[40], &[0], &[33]]);
    check("one rank", &one, 1);
    let two = Layer::new(2, 10, 4, 20).mixed([&[20, 20], &[20, 3], &[0, 20]]);
    check("two ranks", &two, 2);
    let four = Layer::new(4, 12, 3, 12).mixed([&[12, 0, 5, 12], &[0, 0, 12, 1], &[12, 12, 12, 12]]);
    check("four ranks", &four, 1);
    let eight = Layer::new(8, 16, 2, 4).mixed([&[4; 8], &[0, 1, 2, 3, 4, 0, 0, 1], &[4; 8]]);
    check("eight ranks", &eight, 1);
}

/// Sums travel in packets, through the pipeline, or either way depending on the tokens of their rank.
#[test]
fn sums_are_right_in_packets_and_through_the_pipeline() {
    for (world, limit) in share(vec![(1, 0), (1, 5), (2, 5), (4, 0), (4, 5)], "", (0, 3)) {
        let mut layer = Layer::new(world, 12, 3, 12);
        (layer.low_latency_tokens, layer.intermediate) = (Some(limit), 520);
        let counts = [[12, 5, 6, 0], [3, 12, 12, 5], [5, 1, 12, 12]];
        let counts = counts.each_ref().map(|counts| &counts[..world as usize]);
        let layer = layer.mixed(counts);
        check(&format!("{world} ranks, limit {limit}"), &layer, 1);
    }
}

/// Layers of fp16 on one node and across nodes.
#[test]
fn layers_of_fp16_are_right() {
    for (nodes, limit) in [(1, 5), (2, 0)] {
        let mut layer = Layer::new(4, 12, 3, 12).across(nodes, Faults::default());
        (layer.dtype, layer.low_latency_tokens) = (Dtype::Fp16, Some(limit));
        (layer.swiglu, layer.tile) = (nodes == 1, None);
        let layer = layer.mixed([&[12, 5, 6, 0], &[3, 12, 12, 5], &[5, 1, 12, 12]]);
        check(&format!("{nodes} nodes"), &layer, 1);
    }
}

/// Some choices, all choices of some tokens and all choices of a rank are missing, and their weights are NaN. Sums travel in
/// packets and through the pipeline, and tiles are whole or divided into slices.
#[test]
fn tokens_without_some_or_any_of_their_choices_are_right() {
    let jobs_of = |world| vec![(world, Some(0)), (world, Some(5)), (world, None)];
    for (world, limit) in each_in_one(&[1, 2, 4], jobs_of) {
        let mut layer = Layer::new(world, 12, 3, 12);
        (layer.low_latency_tokens, layer.intermediate) = (limit, 520);
        let counts = [[12, 5, 6, 0], [5, 12, 12, 12], [12, 1, 12, 12]];
        let counts = counts.each_ref().map(|counts| &counts[..world as usize]);
        let layer = layer.mixed(counts).padded();
        check(&format!("{world} ranks, limit {limit:?}"), &layer, 1);
    }
    let mut sliced = Layer::new(2, 4, 2, 40);
    (sliced.split_k, sliced.hidden, sliced.sms) = (Some(4), 456, 6);
    let sliced = sliced.mixed([&[40, 40], &[40, 9], &[40, 3]]).padded();
    check("slices", &sliced, 1);
}

/// Calls have no rows at all on any rank, on both sides of the limit between packets and the pipeline.
#[test]
fn calls_without_any_choice_are_right() {
    for limit in [0, 5, 12] {
        let mut layer = Layer::new(2, 6, 2, 12);
        layer.low_latency_tokens = Some(limit);
        let layer = layer
            .call(&[12, 5], |_, _| vec![-1, -1])
            .call(&[5, 12], |_, token| vec![-1, (token % 6) as i32])
            .call(&[12, 12], |_, _| vec![-1, -1]);
        check(&format!("limit {limit}"), &layer, 1);
    }
}

/// Missing choices do not count towards `max_rows`.
#[test]
fn missing_choices_take_no_room() {
    let mut layer = Layer::new(2, 4, 2, 10);
    layer.max_rows = Some(12);
    let layer = layer.call(&[10, 10], |_, token| vec![-1, (token % 4) as i32]);
    check("full", &layer, 1);
}

#[test]
fn missing_choices_out_of_step_and_in_graphs_are_right() {
    for pattern in [CallPattern::OutOfStep, CallPattern::Graph] {
        let mut layer = Layer::new(2, 6, 2, 16);
        (layer.pattern, layer.skew) = (pattern, 100);
        let layer = layer.mixed([&[16, 16], &[0, 5], &[16, 1]]).padded();
        check(&format!("{pattern:?}"), &layer, 1);
    }
}

#[test]
fn every_tile_and_layout_is_right() {
    for (tile, nk) in [
        ((128, 256), true),
        ((128, 128), false),
        ((64, 256), true),
        ((64, 128), true),
    ] {
        let mut layer = Layer::new(2, 4, 2, 70);
        layer.tile = Some(tile);
        layer.nk = nk;
        layer.intermediate = 136;
        let layer = layer.mixed([&[70, 70], &[1, 70], &[70, 0]]);
        check(&format!("{tile:?}, nk {nk}"), &layer, 1);
    }
}

/// Tiles of the last round are divided into slices of K, such as 2 tiles on 6 CTAs into 3.
#[test]
fn tiles_in_slices_are_right() {
    let layers = vec![
        (1, (64, 128), 7, false),
        (2, (128, 256), 3, true),
        (2, (64, 256), 7, false),
        (4, (128, 128), 4, false),
    ];
    for (world, tile, splits, swiglu) in share(layers, "", (0, 3)) {
        let mut layer = Layer::new(world, 4, 2, 40);
        (layer.tile, layer.split_k, layer.swiglu) = (Some(tile), Some(splits), swiglu);
        (layer.hidden, layer.intermediate, layer.sms) = (456, 72, 6);
        let counts = [[40, 40, 9, 40], [1, 0, 0, 0], [40, 3, 40, 0]];
        let layer = layer.mixed(counts.each_ref().map(|counts| &counts[..world as usize]));
        let name = format!("{world} ranks, {tile:?}, {splits} slices, swiglu {swiglu}");
        check(&name, &layer, 1);
        check(&name, &layer.with_call_count(WRAPPING_CALL_COUNTS[1]), 1);
    }
}

/// C is the product of two sums, one from each half of the weight's columns.
#[test]
fn swiglu_is_right_with_every_tile_and_layout() {
    let layers = vec![
        ((128, 256), true),
        ((128, 256), false),
        ((128, 128), true),
        ((64, 256), false),
        ((64, 256), true),
    ];
    for (tile, nk) in share(layers, "", (0, 3)) {
        let mut layer = Layer::new(2, 4, 2, 70);
        (layer.tile, layer.nk, layer.swiglu) = (Some(tile), nk, true);
        layer.intermediate = 136;
        let layer = layer.mixed([&[70, 70], &[1, 70], &[70, 0]]);
        check(&format!("{tile:?}, nk {nk}"), &layer, 1);
    }
}

#[test]
fn tokens_may_all_have_the_same_experts() {
    let layer = Layer::new(4, 8, 2, 20);
    let layer = layer
        .call(&[20; 4], |_, _| vec![5, 4])
        .call(&[20; 4], |rank, _| {
            vec![rank as i32 * 2, 7 - rank as i32 * 2]
        })
        .call(&[0; 4], |_, _| vec![0, 1]);
    check("one pair", &layer, 1);
}

/// Every token goes to all experts.
#[test]
fn top_k_may_be_the_number_of_experts() {
    let layer = Layer::new(4, 4, 4, 9).call(&[9, 2, 0, 9], |rank, token| {
        (0..4).map(|j| ((rank + token + j) % 4) as i32).collect()
    });
    check("all experts", &layer, 1);
}

#[test]
fn late_ranks_do_not_change_results() {
    let mut layer = Layer::new(2, 6, 2, 16);
    layer.skew = 100;
    let layer = layer.mixed([&[16, 16], &[16, 0], &[16, 16]]);
    check("skewed", &layer, 2);
}

/// The results stay right while the call count passes 2^31 or 2^32, in turn from layer to layer.
#[test]
fn layers_are_right_after_many_calls() {
    let wide = |swiglu| {
        let mut wide = Layer::new(2, 4, 2, 70);
        (wide.tile, wide.nk, wide.intermediate) = (Some((128, 256)), true, 136);
        wide.swiglu = swiglu;
        wide
    };
    let layers = vec![
        ("one rank", Layer::new(1, 7, 3, 40)),
        ("two ranks", Layer::new(2, 10, 4, 40)),
        ("four ranks", Layer::new(4, 12, 3, 12)),
        ("eight ranks", Layer::new(8, 16, 2, 4)),
        ("large tiles", wide(false)),
        ("SwiGLU", wide(true)),
    ];
    let layers = share(layers, "", (0, 3)).into_iter();
    for ((name, layer), calls) in layers.zip(WRAPPING_CALL_COUNTS.iter().cycle()) {
        let name = format!("{name}, {calls} calls");
        check(&name, &layer.with_call_count(*calls), 1);
    }
}

/// A rank gets exactly the number of rows for which it has room.
#[test]
fn all_rows_of_a_rank_may_be_used() {
    let mut layer = Layer::new(2, 4, 1, 10);
    layer.max_rows = Some(20);
    let layer = layer.call(&[10, 10], |_, token| vec![(token % 2) as i32]);
    check("full", &layer, 1);
}

#[test]
fn random_and_skewed_routing_is_right() {
    let layer = Layer::new(4, 16, 4, 12);
    let layer = layer
        .random(&[12; 4], true)
        .random(&[12, 1, 0, 7], false)
        .random(&[12; 4], true);
    check("random", &layer, 1);
}

#[test]
fn calls_out_of_step_and_in_graphs_are_right() {
    for pattern in [CallPattern::OutOfStep, CallPattern::Graph] {
        let mut layer = Layer::new(2, 6, 2, 16);
        layer.pattern = pattern;
        let layer = layer.mixed([&[16, 16], &[0, 5], &[16, 1]]);
        check(&format!("{pattern:?}"), &layer, 1);
    }
}
