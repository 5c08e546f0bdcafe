//! Tests of whole layers of experts, which `moe_layer` makes in one launch.

use crate::layers::check;
use mkernel::spec::{Dtype, Scales};
use mkernel_testing::jobs::attention::CallPattern;
use mkernel_testing::jobs::experts::Layer;
use mkernel_testing::jobs::{WRAPPING_CALL_COUNTS, share};

/// Returns a layer with several stages in both products and several column tiles.
fn whole(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> Layer {
    let mut layer = Layer::new(world, experts, top_k, max_tokens).whole();
    (layer.hidden, layer.intermediate) = (456, 200);
    layer
}

#[test]
fn whole_layers_are_right_in_every_world() {
    let one = whole(1, 7, 3, 40).mixed([&[40], &[0], &[33]]);
    check("one rank", &one, 1);
    let two = whole(2, 10, 4, 20).mixed([&[20, 20], &[20, 3], &[0, 20]]);
    check("two ranks", &two, 2);
    let four = whole(4, 12, 3, 12).mixed([&[12, 0, 5, 12], &[0, 0, 12, 1], &[12, 12, 12, 12]]);
    check("four ranks", &four, 1);
    let eight = whole(8, 16, 2, 4).mixed([&[4; 8], &[0, 1, 2, 3, 4, 0, 0, 1], &[4; 8]]);
    check("eight ranks", &eight, 1);
}

#[test]
fn every_tile_layout_and_type_is_right() {
    for (tile, nk, dtype) in [
        ((128, 256), true, Dtype::Bf16),
        ((128, 128), false, Dtype::Fp16),
        ((64, 256), false, Dtype::Bf16),
    ] {
        let mut layer = whole(2, 4, 2, 70);
        (layer.tile, layer.nk, layer.dtype) = (Some(tile), nk, dtype);
        let layer = layer.mixed([&[70, 70], &[1, 70], &[70, 0]]);
        check(&format!("{tile:?}, nk {nk}, {dtype}"), &layer, 1);
    }
}

/// The layer quantises hidden rows and computes their scales.
#[test]
fn whole_layers_of_e4m3_are_right() {
    for (world, intermediate) in share(vec![(1, 128), (2, 384), (4, 128)], "", (0, 3)) {
        let mut layer = whole(world, 8, 3, 24).scaled(Scales::Block);
        (layer.hidden, layer.intermediate) = (464, intermediate);
        layer.tile = None;
        let counts = [[24, 5, 6, 0], [3, 24, 24, 5], [5, 1, 24, 24]];
        let counts = counts.each_ref().map(|counts| &counts[..world as usize]);
        check(&format!("{world} ranks"), &layer.mixed(counts).padded(), 1);
    }
}

/// Tiles of the down projection wait for hidden rows. With one SM, the waiting CTA has computed these rows itself.
#[test]
fn any_number_of_ctas_is_right() {
    for sms in share(vec![1, 2, 9], "", (0, 3)) {
        let mut layer = whole(2, 4, 2, 30);
        layer.sms = sms;
        let layer = layer.mixed([&[30, 30], &[0, 0], &[30, 7]]);
        check(&format!("{sms} SMs"), &layer, 1);
    }
}

#[test]
fn tokens_without_some_or_any_of_their_choices_are_right() {
    for (world, top_k) in [(1, 3), (2, 9)] {
        let layer = whole(world, 26, top_k, 12);
        let counts = [[12, 5], [5, 12], [12, 1]];
        let counts = counts.each_ref().map(|counts| &counts[..world as usize]);
        check(&format!("{world} ranks"), &layer.mixed(counts).padded(), 1);
    }
    let layer = whole(2, 6, 2, 12)
        .call(&[12, 5], |_, _| vec![-1, -1])
        .call(&[5, 12], |_, token| vec![-1, (token % 6) as i32])
        .call(&[12, 12], |_, _| vec![-1, -1]);
    check("no choices", &layer, 1);
}

#[test]
fn uneven_experts_are_right() {
    let layer = whole(4, 8, 2, 20)
        .call(&[20; 4], |_, _| vec![5, 4])
        .call(&[20; 4], |rank, _| {
            vec![rank as i32 * 2, 7 - rank as i32 * 2]
        })
        .call(&[0; 4], |_, _| vec![0, 1]);
    check("one pair", &layer, 1);
    let layer = whole(2, 16, 4, 24)
        .random(&[24, 24], true)
        .random(&[24, 3], true);
    check("skewed", &layer, 1);
}

#[test]
fn whole_layers_out_of_step_and_in_graphs_are_right() {
    for pattern in [CallPattern::OutOfStep, CallPattern::Graph] {
        let mut layer = whole(2, 6, 2, 16);
        (layer.pattern, layer.skew) = (pattern, 100);
        let layer = layer.mixed([&[16, 16], &[0, 5], &[16, 1]]);
        check(&format!("{pattern:?}"), &layer, 1);
    }
    for calls in WRAPPING_CALL_COUNTS {
        check(
            &format!("{calls} calls"),
            &whole(2, 6, 2, 16).with_call_count(calls),
            1,
        );
    }
}

#[test]
fn an_absent_rank_is_an_error_of_the_others() {
    let mut layer = whole(2, 6, 2, 16);
    layer.pattern = CallPattern::AbsentRank { rank: 1 };
    let layer = layer.mixed([&[16, 16], &[16, 16], &[16, 16]]);
    let outcomes = layer.run_ranks(0);
    let failure = outcomes[0].as_ref().expect_err("a rank is absent");
    assert!(failure.contains("rank 1"), "{failure}");
    assert!(!failure.contains("simulator found"), "{failure}");
}
