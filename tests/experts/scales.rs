//! Layers of e4m3, whose tokens may travel with their scales.

use crate::layers::check;
use mkernel::spec::Scales;
use mkernel_testing::jobs::attention::CallPattern;
use mkernel_testing::jobs::experts::Layer;
use mkernel_testing::jobs::{each_in_one, share};

#[test]
fn layers_of_e4m3_are_right() {
    let all = [Scales::None, Scales::Tensor, Scales::Row, Scales::Block];
    let tiles = [(64, 128), (64, 256), (128, 128), (128, 256)];
    let jobs_of = |world| {
        let pairs = all.into_iter().zip(tiles);
        pairs.map(|pair| (world, pair)).collect()
    };
    for (world, (scales, tile)) in each_in_one(&[1, 2, 4], jobs_of) {
        let mut layer = Layer::new(world, 8, 3, 24).scaled(scales);
        (layer.tile, layer.intermediate) = (Some(tile), 136);
        let counts = [[24, 5, 6, 0], [3, 24, 24, 5], [5, 1, 24, 24]];
        let counts = counts.each_ref().map(|counts| &counts[..world as usize]);
        let name = format!("{scales:?}, {world} ranks");
        check(&name, &layer.mixed(counts), 1);
    }
}

/// Tiles of e4m3 are divided into slices, and are products of a gate and an up projection. There are more stages than one window
/// of scales covers.
#[test]
fn slices_and_swiglu_of_e4m3_are_right() {
    let layers = vec![
        (Scales::Row, (128, 256), true, 3),
        (Scales::Row, (64, 128), false, 4),
        (Scales::Block, (64, 256), true, 3),
        (Scales::Block, (64, 128), false, 4),
        (Scales::Block, (128, 256), true, 1),
        (Scales::Tensor, (128, 128), true, 2),
    ];
    for (scales, tile, swiglu, splits) in share(layers, "", (0, 3)) {
        let mut layer = Layer::new(2, 4, 2, 40).scaled(scales);
        (layer.tile, layer.split_k, layer.swiglu) = (Some(tile), Some(splits), swiglu);
        (layer.hidden, layer.intermediate, layer.sms) = (1360, 200, 6);
        let layer = layer.mixed([&[40, 40], &[1, 0], &[40, 3]]);
        check(&format!("{scales:?}, {tile:?}, {splits} slices"), &layer, 1);
    }
}

/// Rows of e4m3 of a `dispatch_gemm`: one and two blocks of a warp, columns that C does not have, and tiles that are divided.
#[test]
fn rows_become_e4m3() {
    let cases = [
        (1, Scales::None, (128, 256), true, 1),
        (2, Scales::Row, (128, 256), false, 2),
        (4, Scales::Block, (128, 256), true, 1),
        (2, Scales::Block, (128, 128), false, 2),
    ];
    for (world, scales, tile, swiglu, splits) in cases {
        let mut layer = Layer::new(world, 8, 3, 24);
        if scales != Scales::None {
            layer = layer.scaled(scales);
        }
        (layer.quantises, layer.swiglu, layer.tile) = (true, swiglu, Some(tile));
        (layer.hidden, layer.intermediate, layer.split_k) = (528, 272, Some(splits));
        let counts = [[24, 5, 6, 0], [3, 24, 24, 5], [5, 1, 24, 24]];
        let counts = counts.each_ref().map(|counts| &counts[..world as usize]);
        let name = format!("rows of {tile:?}, {scales:?}, {world} ranks");
        check(&name, &layer.mixed(counts), 1);
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
        check(&format!("{scales:?}, {pattern:?}"), &layer, 1);
    }
}
