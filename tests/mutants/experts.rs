//! Kernels of `dispatch_gemm`, `combine`, `gemm_combine` and `moe_layer`.

use crate::Kernel;
use mkernel::network::Faults;
use mkernel::spec::{Router, Scales, Scores};
use mkernel_testing::jobs::attention::CallPattern;
use mkernel_testing::jobs::bad_network;
use mkernel_testing::jobs::experts::Layer;

pub const KERNELS: &[Kernel<Layer>] = &[
    ("long_tokens", long_tokens),
    ("short_tokens", short_tokens),
    ("layer", layer),
    ("rank_0_ahead", rank_0_ahead),
    ("combine_layer", combine_layer),
    ("few_and_many_tokens", few_and_many_tokens),
    ("layer_in_slices", layer_in_slices),
    ("padded_layer", padded_layer),
    ("large_tiles", large_tiles),
    ("scaled_blocks", scaled_blocks),
    ("short_scaled_tokens", short_scaled_tokens),
    ("nodes", nodes),
    ("nodes_scaled", nodes_scaled),
    ("nodes_padded", nodes_padded),
    ("nodes_many", nodes_many),
    ("six_calls", six_calls),
    ("three_nodes", three_nodes),
    ("acknowledged", acknowledged),
    ("acknowledged_on_four", acknowledged_on_four),
    ("acknowledged_lists", acknowledged_lists),
    ("near_sums_first", near_sums_first),
    ("sums_of_four", sums_of_four),
    ("few_tokens_of_four", few_tokens_of_four),
    ("whole_on_one_rank", whole_on_one_rank),
    ("whole_of_short_tokens", whole_of_short_tokens),
    ("whole_padded", whole_padded),
    ("whole_ahead", whole_ahead),
    ("whole_of_e4m3", whole_of_e4m3),
    ("short_whole_of_e4m3", short_whole_of_e4m3),
    ("rows_of_e4m3", rows_of_e4m3),
    ("returned_rows", returned_rows),
    ("returned_short_rows", returned_short_rows),
    ("from_logits", from_logits),
];

/// Returns a layer with tokens so long that a slot holds only one token and a flag covers two tokens.
fn long_tokens() -> Layer {
    let mut layer = Layer::new(2, 2, 1, 48);
    layer.hidden = 4104;
    layer.intermediate = 8;
    layer.call(&[48, 48], |rank, _| vec![1 - rank as i32])
}

/// Returns a layer with tokens so short that a tile takes one stage. The pipeline has more stages than slots for tiles, so
/// that loads can run ahead of the matrix products.
fn short_tokens() -> Layer {
    let mut layer = Layer::new(2, 6, 2, 24);
    layer.hidden = 64;
    layer.intermediate = 600;
    layer.tile = Some((64, 128));
    layer.call(&[24, 24], |rank, token| {
        let first = (rank * 5 + token * 3) % 6;
        vec![first as i32, ((first + 1) % 6) as i32]
    })
}

fn layer() -> Layer {
    let choose = |salt: usize| {
        move |rank: usize, token: usize| {
            let first = (rank * 5 + token * 3 + salt) % 6;
            vec![first as i32, ((first + 1 + token % 2) % 6) as i32]
        }
    };
    let mut layer = Layer::new(2, 6, 2, 24);
    // A tile takes more stages than the pipeline has, and two sub-tiles pass through one output buffer.
    layer.hidden = 456;
    layer.intermediate = 200;
    layer.tile = Some((64, 256));
    layer
        .call(&[24, 24], choose(0))
        .call(&[24, 0], choose(1))
        .call(&[24, 24], choose(2))
}

/// Returns a layer in which rank 0 can be a call ahead.
///
/// Tokens of rank 0 have experts on rank 0 only. Tokens of each other rank have experts on the next rank other than 0. Each of
/// these ranks alternately computes a sum for a peer and waits for a sum of its own, and meanwhile reads the entries of rank 0.
/// Rank 0 waits for no peer.
fn rank_0_ahead() -> Layer {
    let mut layer = Layer::new(4, 4, 1, 16);
    (layer.hidden, layer.intermediate) = (8, 8);
    (layer.sms, layer.skew) = (1, 100);
    layer.low_latency_tokens = Some(0);
    (0..3).fold(layer, |layer, _| {
        layer.call(&[16; 4], |rank, _| vec![[0, 2, 3, 1][rank]])
    })
}

/// Returns a layer in which a CTA has more rows than its pipeline has stages, and all sums pass through it.
fn combine_layer() -> Layer {
    let mut layer = layer();
    layer.sms = 3;
    layer.low_latency_tokens = Some(0);
    layer
}

/// Returns a layer in which all sums travel in packets, and ranks have fewer tokens from call to call.
fn few_tokens() -> Layer {
    let layer = Layer::new(2, 6, 2, 24);
    let mut layer = [[24, 24], [20, 24], [3, 1], [2, 9], [24, 24]]
        .iter()
        .enumerate()
        .fold(layer, |layer, (salt, counts)| {
            layer.call(counts, |rank, token| {
                let first = (rank * 5 + token * 3 + salt) % 6;
                vec![first as i32, ((first + 1 + token % 2) % 6) as i32]
            })
        });
    (layer.intermediate, layer.skew) = (200, 100);
    layer
}

/// Returns a layer in which the sums of ranks with few tokens travel in packets, and the sums of other ranks do not.
fn few_and_many_tokens() -> Layer {
    let mut layer = few_tokens();
    layer.low_latency_tokens = Some(20);
    layer
}

/// Returns a layer with fewer tiles than CTAs, which are divided into slices.
fn layer_in_slices() -> Layer {
    let mut layer = layer();
    (layer.intermediate, layer.split_k, layer.sms, layer.skew) = (72, Some(3), 11, 100);
    layer
}

/// Returns a layer in which tokens lack choices, and all sums of `combine` pass through the pipeline.
fn padded_layer() -> Layer {
    let mut layer = layer().padded();
    layer.low_latency_tokens = Some(0);
    layer
}

/// Returns a layer whose experts have rows for one of two warpgroups.
fn large_tiles() -> Layer {
    let mut layer = layer();
    layer.tile = Some((128, 256));
    layer
}

/// A layer with so many tokens that a flag covers two tokens, in tiles with rows of both ranks.
fn scaled(scales: Scales) -> Layer {
    let mut layer = Layer::new(2, 6, 2, 48).scaled(scales);
    layer.intermediate = 136;
    layer.mixed([&[48, 48], &[48, 3], &[48, 48]])
}

fn scaled_blocks() -> Layer {
    scaled(Scales::Block)
}

/// Tiles of one stage on one CTA: loads run ahead, so warps are at different tiles.
fn short_scaled_tokens() -> Layer {
    let mut layer = Layer::new(1, 6, 2, 24).scaled(Scales::Row);
    (layer.hidden, layer.intermediate, layer.sms, layer.skew) = (64, 600, 1, 100);
    layer.mixed([&[24], &[24], &[24]])
}

/// Two nodes of two ranks.
fn across(experts: u64, top_k: u64, tokens: u64) -> Layer {
    Layer::new(4, experts, top_k, tokens).across(2, bad_network())
}

fn nodes() -> Layer {
    across(8, 3, 12).mixed([&[12; 4], &[12, 0, 12, 5], &[12; 4]])
}

fn nodes_scaled() -> Layer {
    let layer = across(8, 3, 12).scaled(Scales::Row);
    layer.mixed([&[12; 4], &[12, 0, 12, 5], &[12; 4]])
}

fn nodes_padded() -> Layer {
    nodes().padded()
}

/// More calls than a rank has CTAs, so that a count with one too many per call gets a call ahead.
fn six_calls() -> Layer {
    let mut layer = across(4, 2, 4);
    (layer.hidden, layer.intermediate) = (8, 8);
    let counts = [4; 4];
    layer.mixed([&counts; 3]).mixed([&counts; 3])
}

/// Lists to which several CTAs write.
fn nodes_many() -> Layer {
    let mut many = Layer::new(2, 6, 3, 300).across(2, bad_network());
    (many.hidden, many.intermediate) = (8, 8);
    many.mixed([&[300; 2], &[300, 40], &[300; 2]])
}

/// Three nodes of two ranks. A rank has 40 rows, and room for 44. With two communication CTAs, one may forward a token that
/// the other one has numbered.
fn three_nodes() -> Layer {
    let mut layer = Layer::new(6, 12, 4, 10).across(3, bad_network());
    (layer.max_rows, layer.puts, layer.comm_ctas) = (Some(44), Some((2, 1)), Some(2));
    (0..3).fold(layer, |layer, call| {
        let tokens = |rank| match (call, rank) {
            (1, 0) => 0,
            (1, 2) => 3,
            _ => 10,
        };
        let counts: Vec<_> = (0..6).map(tokens).collect();
        layer.call(&counts, move |rank, token| {
            let choice = |j: usize| ((call + rank + token + j * 3) % 12) as i32;
            (0..4).map(choice).collect()
        })
    })
}

/// Small tokens that exceed the room of a rank, so that places are reused within a call.
fn acknowledged() -> Layer {
    with_little_room(Layer::new(2, 4, 2, 12).across(2, bad_network()), 12)
}

fn acknowledged_on_four() -> Layer {
    let mut layer = Layer::new(4, 8, 3, 12).across(2, bad_network());
    (layer.comm_ctas, layer.skew) = (Some(2), 100);
    with_little_room(layer, 12)
}

fn with_little_room(mut layer: Layer, tokens: usize) -> Layer {
    (layer.hidden, layer.intermediate, layer.puts) = (8, 8, Some((2, 1)));
    let all = vec![tokens; layer.world as usize];
    layer.mixed([&all, &all, &all])
}

/// Lists to which several CTAs write, of more tokens than a rank has room for.
fn acknowledged_lists() -> Layer {
    let mut layer = Layer::new(2, 6, 3, 300).across(2, bad_network());
    (layer.hidden, layer.intermediate, layer.puts) = (8, 8, Some((64, 1)));
    layer.mixed([&[300; 2]; 3])
}

/// Sums of the other node arrive while rank 0 still sends sums to rank 1.
fn near_sums_first() -> Layer {
    let mut layer = Layer::new(4, 8, 3, 300).across(2, Faults::default());
    (layer.hidden, layer.intermediate) = (8, 8);
    layer.mixed([&[2, 300, 0, 0]; 3])
}

/// No sums travel in packets, and each rank adds up sums of several ranks.
fn sums_of_four() -> Layer {
    let mut layer = few_tokens_of_four();
    layer.low_latency_tokens = Some(0);
    layer
}

/// All sums travel in packets, and each rank adds up packets of several ranks.
fn few_tokens_of_four() -> Layer {
    let mut layer = Layer::new(4, 8, 3, 6);
    (layer.hidden, layer.intermediate, layer.skew) = (8, 72, 100);
    layer.mixed([&[6; 4], &[6, 1, 0, 6], &[6; 4]])
}

/// Several stages in both products, and several column tiles.
fn whole_layer(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> Layer {
    let mut layer = Layer::new(world, experts, top_k, max_tokens).whole();
    (layer.hidden, layer.intermediate) = (456, 200);
    layer
}

/// The same layer of `dispatch_gemm` and `gemm_combine`.
fn returned_layer(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> Layer {
    whole_layer(world, experts, top_k, max_tokens).apart()
}

/// Tokens without choices, and a rank without tokens.
fn returned_rows() -> Layer {
    returned_layer(2, 6, 2, 24)
        .mixed([&[24, 24], &[24, 0], &[3, 24]])
        .padded()
}

/// Tiles of one stage on one CTA: loads run ahead, so warps are at different tiles.
fn returned_short_rows() -> Layer {
    let mut layer = returned_layer(1, 6, 2, 24);
    (layer.hidden, layer.intermediate, layer.sms, layer.skew) = (64, 64, 1, 100);
    layer.mixed([&[24], &[24], &[24]])
}

/// Tiles of the down projection wait for tiles that other CTAs compute.
fn whole_on_one_rank() -> Layer {
    whole_layer(1, 7, 3, 40).mixed([&[40], &[0], &[33]])
}

/// Tiles of one stage on one CTA: loads run ahead, so warps are at different tiles.
fn whole_of_short_tokens() -> Layer {
    let mut layer = whole_layer(1, 6, 2, 24);
    (layer.hidden, layer.intermediate, layer.sms, layer.skew) = (64, 64, 1, 100);
    layer.mixed([&[24], &[24], &[24]])
}

fn whole_padded() -> Layer {
    whole_layer(2, 6, 2, 12)
        .mixed([&[12, 5], &[5, 12], &[12, 1]])
        .padded()
}

/// Tiles with rows of both ranks and of two warpgroups, on ranks out of step.
fn whole_ahead() -> Layer {
    let mut layer = whole_layer(2, 4, 2, 70);
    (layer.tile, layer.skew, layer.pattern) = (Some((128, 256)), 100, CallPattern::OutOfStep);
    layer.mixed([&[70, 70], &[1, 70], &[70, 0]])
}

/// Hidden rows with scales, which tiles of the down projection read, on ranks out of step.
fn whole_of_e4m3() -> Layer {
    let mut layer = whole_layer(2, 4, 2, 70).scaled(Scales::Block);
    (layer.hidden, layer.intermediate, layer.tile) = (464, 256, None);
    (layer.skew, layer.pattern) = (100, CallPattern::OutOfStep);
    layer.mixed([&[70, 70], &[1, 70], &[70, 0]])
}

/// Hidden rows with scales in tiles of one stage on one CTA: loads run ahead of warps that read their tile again.
fn short_whole_of_e4m3() -> Layer {
    let mut layer = whole_layer(1, 6, 2, 24).scaled(Scales::Block);
    (layer.hidden, layer.intermediate, layer.tile) = (64, 128, None);
    (layer.sms, layer.skew) = (1, 100);
    layer.mixed([&[24], &[24], &[24]])
}

/// Rows of e4m3 with two blocks of a warp, scales that are not in the sums, and columns that C does not have.
fn rows_of_e4m3() -> Layer {
    let mut layer = Layer::new(2, 4, 2, 70).scaled(Scales::Row);
    (layer.hidden, layer.intermediate, layer.tile) = (64, 272, Some((128, 256)));
    layer.quantises = true;
    layer.mixed([&[70, 70], &[1, 70], &[70, 0]])
}

/// Each CTA chooses the experts of several tokens, a warp for each token.
fn from_logits() -> Layer {
    let router = Router {
        scores: Scores::Softmax,
        renormalise: true,
        ..Router::default()
    };
    layer().routed(router)
}
