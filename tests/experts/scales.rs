//! Layers of e4m3, whose tokens may travel with their scales, and mutations of the way that scales take.

use crate::layers::check;
use crate::mutations::{Mutation, are_found};
use mkernel::spec::Scales;
use mkernel_testing::jobs::SimulatedJob;
use mkernel_testing::jobs::attention::CallPattern;
use mkernel_testing::jobs::experts::Layer;

#[test]
fn layers_of_e4m3_are_right() {
    let all = [Scales::None, Scales::Tensor, Scales::Row, Scales::Block];
    for (scales, tile) in all
        .into_iter()
        .zip([(64, 128), (64, 256), (128, 128), (128, 256)])
    {
        for world in [1, 2, 4] {
            let mut layer = Layer::new(world, 8, 3, 24).scaled(scales);
            (layer.tile, layer.intermediate) = (Some(tile), 136);
            let counts = [[24, 5, 6, 0], [3, 24, 24, 5], [5, 1, 24, 24]];
            let counts = counts.each_ref().map(|counts| &counts[..world as usize]);
            check(
                &format!("{scales:?}, {world} ranks"),
                &layer.mixed(counts),
                2,
            );
        }
    }
}

/// Tiles of e4m3 are divided into slices, and are products of a gate and an up projection. More stages than a window of scales has.
#[test]
fn slices_and_swiglu_of_e4m3_are_right() {
    for (scales, tile, swiglu, splits) in [
        (Scales::Row, (128, 256), true, 3),
        (Scales::Row, (64, 128), false, 4),
        (Scales::Block, (64, 256), true, 3),
        (Scales::Block, (64, 128), false, 4),
        (Scales::Block, (128, 256), true, 1),
        (Scales::Tensor, (128, 128), true, 2),
    ] {
        let mut layer = Layer::new(2, 4, 2, 40).scaled(scales);
        (layer.tile, layer.split_k, layer.swiglu) = (Some(tile), Some(splits), swiglu);
        (layer.hidden, layer.intermediate, layer.sms) = (1360, 200, 6);
        let layer = layer.mixed([&[40, 40], &[1, 0], &[40, 3]]);
        check(&format!("{scales:?}, {tile:?}, {splits} slices"), &layer, 1);
    }
}

#[test]
fn layers_of_e4m3_out_of_step_and_in_graphs_are_right() {
    for (scales, pattern) in [
        (Scales::Row, CallPattern::Graph),
        (Scales::Block, CallPattern::OutOfStep),
    ] {
        let mut layer = Layer::new(2, 6, 2, 16).scaled(scales);
        (layer.pattern, layer.skew) = (pattern, 100);
        let layer = layer.mixed([&[16, 16], &[0, 5], &[16, 1]]).padded();
        check(&format!("{scales:?}, {pattern:?}"), &layer, 2);
    }
}

/// So many tokens that a flag covers two tokens, in tiles that have rows of both ranks.
fn scaled(scales: Scales) -> Layer {
    let mut layer = Layer::new(2, 6, 2, 48).scaled(scales);
    layer.intermediate = 136;
    layer.mixed([&[48, 48], &[48, 3], &[48, 48]])
}

fn rows() -> Layer {
    scaled(Scales::Row)
}

fn blocks() -> Layer {
    scaled(Scales::Block)
}

fn tensors() -> Layer {
    scaled(Scales::Tensor)
}

/// Tiles of one stage on one CTA: loads run ahead, so warps are at different tiles.
fn short_tokens() -> Layer {
    let mut layer = Layer::new(1, 6, 2, 24).scaled(Scales::Row);
    (layer.hidden, layer.intermediate, layer.sms, layer.skew) = (64, 600, 1, 100);
    layer.mixed([&[24], &[24], &[24]])
}

#[rustfmt::skip]
const ROWS: &[Mutation] = &[
    ("scales that are not sent", "@tokens.scales", ""),
    ("a flag raised before other lanes have stored scales", "@tokens.scales-warp", ""),
    ("the scales of the first token for all tokens of a block", "@shards.scale", "row_at(i / kScales) => row_at(0)"),
    ("scales stored over those of the first token", "@shards.scale-slot", "i / kScales * kRowBytes => 0u"),
    ("the scales of the first row of a tile for all rows", "@grouped.scales-row", "min(row, tile.rows - 1) => 0"),
    ("the scales of the first expert for all experts", "@grouped.scales-expert", "tile.expert * bytes => 0"),
    ("the scales of the first own token for all own tokens", "@grouped.own-scales", "(args, token) => (args, 0)"),
    ("elements taken for scales", "@grouped.sent-scales", "elements + Tokens::kTokenBytes => elements"),
    ("addresses of scales not passed on", "@grouped.scales", ""),
    ("addresses of scales read before they are written", "@grouped.scales-arrived", ""),
];

#[rustfmt::skip]
const BLOCKS: &[Mutation] = &[
    ("scales that are not sent", "@tokens.scales", ""),
    ("a flag raised before other lanes have stored scales", "@tokens.scales-warp", ""),
    ("the scales of the first token for all tokens of a block", "@shards.scale", "row_at(i / kScales) => row_at(0)"),
    ("the scales of the first expert for all experts", "@grouped.scales-expert", "tile.expert * bytes => 0"),
    ("addresses of scales read before they are written", "@grouped.scales-arrived", ""),
];

#[test]
fn every_mutation_of_scales_is_found() {
    for job in [rows, blocks, tensors, short_tokens] {
        assert_eq!(job().run(0).err(), None);
    }
    are_found(rows, ROWS);
    are_found(blocks, BLOCKS);
    are_found(
        tensors,
        &[(
            "one scale for all experts",
            "@grouped.scales-expert",
            "tile.expert * bytes => 0",
        )],
    );
    are_found(
        short_tokens,
        &[(
            "a tile overwritten while it is multiplied",
            "@tiles.kept",
            "kTileBuffers + 1 => kTileBuffers",
        )],
    );
}
