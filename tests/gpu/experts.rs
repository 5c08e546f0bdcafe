//! Tests of layers of experts with exactly known results, by `dispatch_gemm` and `combine` or `gemm_combine`, or by `moe_layer`: random and skewed
//! routing, a new number of tokens in each call, graphs, an absent rank, and invalid experts.

use crate::compile::compile;
use crate::ranks::worlds;
use mkernel::network::Faults;
use mkernel::spec::{Dtype, Scales};
use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::attention::CallPattern;
use mkernel_testing::jobs::experts::{Layer, all_recover, invalid_calls};
use mkernel_testing::lab::TimeLimit;
use std::time::{Duration, Instant};

/// Returns layers on `nodes` nodes: typical sizes of a model, sizes that no tile divides, columns that do not fill the
/// vectors of a warp, and tokens without some or any of their choices.
fn layers(world: u32, nodes: u32) -> Vec<(&'static str, Layer)> {
    let ranks = world as usize;
    let sizes = |[hidden, intermediate]: [u64; 2], layer: Layer| Layer {
        hidden,
        intermediate,
        tile: None,
        ..layer
    };
    let new = |local: u64, top_k, max_tokens| {
        let layer = Layer::new(world, local * u64::from(world), top_k, max_tokens);
        layer.across(nodes, Faults::default())
    };
    let mut some: Vec<usize> = (0..ranks).map(|rank| rank * 37).collect();
    some.reverse();
    let (full, none) = (vec![300; ranks], vec![0; ranks]);
    vec![
        (
            "random",
            sizes([1024, 512], new(8, 8, 300))
                .random(&full, false)
                .random(&some, false)
                .random(&none, false)
                .random(&full, false),
        ),
        (
            "skewed",
            sizes([1024, 512], new(16, 6, 300))
                .random(&full, true)
                .random(&some, true)
                .random(&full, true),
        ),
        (
            "odd sizes",
            Layer {
                nk: true,
                ..sizes([1000, 264], new(3, 2, 301)).mixed([&full, &some, &full])
            },
        ),
        (
            "long rows",
            sizes([136, 7168], new(4, 4, 64))
                .random(&vec![64; ranks], false)
                .random(&vec![1; ranks], true),
        ),
        (
            "one expert",
            sizes([264, 136], new(4, 1, 300))
                .call(&full, |_, _| vec![2])
                .call(&some, |_, _| vec![1])
                .call(&full, |rank, _| vec![rank as i32]),
        ),
        ("missing choices", missing_choices(world, nodes)),
        ("slices", slices(world, nodes)),
        ("SwiGLU", swiglu(world, nodes)),
        ("SwiGLU of fp16", fp16(swiglu(world, nodes))),
    ]
}

/// Returns layers with tokens or results of e4m3.
fn layers_of_e4m3(world: u32, nodes: u32) -> Vec<(&'static str, Layer)> {
    vec![
        ("tensors of e4m3", e4m3(world, nodes, Scales::Tensor)),
        ("rows of e4m3", e4m3(world, nodes, Scales::Row)),
        ("blocks of e4m3", e4m3(world, nodes, Scales::Block)),
        ("SwiGLU of e4m3", swiglu_of_e4m3(world, nodes)),
        ("results of e4m3", quantising(swiglu(world, nodes))),
        (
            "results of e4m3 of SwiGLU of e4m3",
            quantising(swiglu_of_e4m3(world, nodes)),
        ),
    ]
}

/// Returns whole layers on one node, of one operator or of two.
fn whole_layers(world: u32) -> Vec<(&'static str, Layer)> {
    let whole = Layer {
        tile: None,
        ..swiglu(world, 1).whole()
    };
    let whole_of_e4m3 = Layer {
        tile: None,
        ..swiglu_of_e4m3(world, 1).whole()
    };
    vec![
        ("whole", whole.clone()),
        ("whole with missing choices", whole.clone().padded()),
        ("whole of fp16", fp16(whole.clone())),
        ("whole of e4m3", whole_of_e4m3.clone()),
        ("two products", whole.clone().apart()),
        ("two products of fp16", fp16(whole).apart()),
        ("two products of e4m3", whole_of_e4m3.apart()),
    ]
}

/// Returns all layers that are possible on `nodes` nodes.
fn all_layers(world: u32, nodes: u32) -> Vec<(&'static str, Layer)> {
    let sent = [layers(world, nodes), layers_of_e4m3(world, nodes)].concat();
    match nodes {
        1 => [sent, whole_layers(world)].concat(),
        _ => sent,
    }
}

fn fp16(layer: Layer) -> Layer {
    Layer {
        dtype: Dtype::Fp16,
        ..layer
    }
}

/// Returns the layer with rows of e4m3.
fn quantising(layer: Layer) -> Layer {
    Layer {
        quantises: true,
        ..layer
    }
}

/// Returns a layer of e4m3 with these scales.
fn e4m3(world: u32, nodes: u32, scales: Scales) -> Layer {
    let full = vec![300; world as usize];
    let layer = Layer::new(world, 4 * u64::from(world), 3, 300).scaled(scales);
    let layer = Layer {
        hidden: 1360,
        intermediate: 512,
        tile: None,
        ..layer.across(nodes, Faults::default())
    };
    layer
        .random(&full, false)
        .random(&vec![31; full.len()], true)
        .random(&full, false)
}

/// Returns a layer of e4m3 whose C is the product of two sums, with so few elements that the product is exact.
fn swiglu_of_e4m3(world: u32, nodes: u32) -> Layer {
    let full = vec![300; world as usize];
    let layer = Layer::new(world, 8 * u64::from(world), 1, 300).scaled(Scales::Block);
    let layer = Layer {
        hidden: 144,
        intermediate: 512,
        tile: None,
        swiglu: true,
        ..layer.across(nodes, Faults::default())
    };
    layer
        .random(&full, false)
        .random(&vec![31; full.len()], true)
        .random(&full, false)
}

/// Returns a layer without some choices, without all choices of some tokens, and without all choices of some ranks.
fn missing_choices(world: u32, nodes: u32) -> Layer {
    let full = vec![300; world as usize];
    let layer = Layer {
        hidden: 1024,
        intermediate: 512,
        tile: None,
        ..Layer::new(world, 8 * u64::from(world), 8, 300)
    };
    let layer = layer.across(nodes, Faults::default());
    layer
        .random(&full, false)
        .random(&vec![7; full.len()], false)
        .random(&full, true)
        .padded()
}

/// Returns a layer with fewer tiles than SMs, which are divided into slices of K.
fn slices(world: u32, nodes: u32) -> Layer {
    let full = vec![300; world as usize];
    let layer = Layer {
        hidden: 1024,
        intermediate: 264,
        tile: None,
        split_k: Some(7),
        ..Layer::new(world, 2 * u64::from(world), 2, 300)
    };
    let layer = layer.across(nodes, Faults::default());
    layer
        .random(&full, false)
        .random(&vec![7; full.len()], true)
        .random(&full, true)
}

/// Returns a layer whose C is the product of two sums.
fn swiglu(world: u32, nodes: u32) -> Layer {
    let full = vec![300; world as usize];
    let layer = Layer {
        hidden: 264,
        intermediate: 512,
        tile: None,
        swiglu: true,
        ..Layer::new(world, 8 * u64::from(world), 2, 300)
    };
    let layer = layer.across(nodes, Faults::default());
    layer
        .random(&full, false)
        .random(&vec![31; full.len()], true)
        .random(&full, false)
}

/// Runs the layer, which must be right, and returns the bits of its results by rank.
fn right(name: &str, layer: &Layer) -> Vec<Vec<u32>> {
    assert!(layer.is_exact(), "{name}");
    let outcomes = layer.run_ranks_on(Backend::Gpus);
    let failures: Vec<_> = outcomes
        .iter()
        .filter_map(|of_rank| of_rank.as_ref().err())
        .collect();
    assert!(failures.is_empty(), "{name}: {failures:#?}");
    outcomes.into_iter().flatten().collect()
}

/// Compiles the kernels of `layers`, on all cores.
fn compile_all(layers: &[(&str, Layer)]) {
    let specs = layers
        .iter()
        .flat_map(|(name, layer)| layer.specs().unwrap_or_else(|no| panic!("{name}: {no}")));
    compile(&specs.collect::<Vec<_>>());
}

/// Runs every layer twice. The results must be right and have equal bits.
pub fn are_right(world: u32, nodes: u32) {
    let layers = all_layers(world, nodes);
    compile_all(&layers);
    for (name, layer) in &layers {
        let first = right(name, layer);
        assert!(
            first == right(name, layer),
            "{name}: other bits than before"
        );
    }
    println!("{world} ranks, {nodes} nodes: {} layers", layers.len());
}

/// Runs every layer with random pauses and as a replayed graph. The results must have the bits of calls without a pause.
pub fn are_right_with_any_pattern(world: u32, nodes: u32) {
    let layers = all_layers(world, nodes);
    compile_all(&layers);
    for (name, layer) in layers {
        let kept = right(name, &layer);
        for pattern in [CallPattern::OutOfStep, CallPattern::Graph] {
            let changed = Layer {
                pattern,
                ..layer.clone()
            };
            for _ in 0..3 {
                assert!(
                    right(name, &changed) == kept,
                    "{name}, {pattern:?}: other bits"
                );
            }
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn experts_of_one_rank_are_right() {
    let _limit = TimeLimit::start("experts of one rank", Duration::from_secs(240));
    are_right(1, 1);
}

#[test]
#[ignore = "needs GPUs"]
fn experts_of_several_ranks_are_right() {
    let _limit = TimeLimit::start("experts of several ranks", Duration::from_secs(480));
    for world in worlds(2) {
        are_right(world, 1);
    }
}

#[test]
#[ignore = "needs GPUs"]
fn experts_out_of_step_and_in_graphs_are_right() {
    let _limit = TimeLimit::start("experts out of step", Duration::from_secs(480));
    for world in worlds(1) {
        are_right_with_any_pattern(world, 1);
    }
}

/// After the failure, new communicators give right results.
#[test]
#[ignore = "needs GPUs"]
fn an_absent_rank_is_named() {
    let _limit = TimeLimit::start("experts without a rank", Duration::from_secs(120));
    for world in worlds(2) {
        let (name, layer) = layers(world, 1).swap_remove(0);
        let alone = Layer {
            pattern: CallPattern::AbsentRank { rank: 1 },
            ..layer.clone()
        };
        let started = Instant::now();
        for (rank, outcome) in alone.run_ranks_on(Backend::Gpus).into_iter().enumerate() {
            match (rank, outcome) {
                (1, outcome) => assert_eq!(outcome, Ok(Vec::new())),
                (_, Ok(_)) => panic!("rank {rank} went on without rank 1"),
                (_, Err(failure)) => assert!(failure.contains("rank 1;"), "{failure}"),
            }
        }
        assert!(started.elapsed() < Duration::from_secs(30));
        right(name, &layer);
    }
}

/// All ranks get an error that names the invalid entry, although a valid call follows. Then new communicators give right
/// results.
#[test]
#[ignore = "needs GPUs"]
fn invalid_experts_are_named() {
    let _limit = TimeLimit::start("wrong choices", Duration::from_secs(120));
    for world in worlds(1) {
        let last = world as usize - 1;
        let right_choice = |_: usize, token: usize| vec![(token % 4) as i32];
        let full = vec![50; world as usize];
        let new = || Layer::new(world, 4 * u64::from(world), 1, 50).call(&full, right_choice);
        for wrong in [4 * world as i32, -2] {
            let layer = new().call(&full, move |rank, token| {
                vec![if (rank, token) == (last, 7) { wrong } else { 0 }]
            });
            let layer = layer.call(&full, right_choice);
            for outcome in layer.run_ranks_on(Backend::Gpus) {
                let failure = outcome.expect_err("a wrong choice");
                for part in ["call 2", "token 7", &format!("expert {wrong}")] {
                    assert!(failure.contains(part), "{part:?} in {failure:?}");
                }
            }
            right("after a wrong choice", &new().call(&full, right_choice));
        }
    }
}

/// An invalid call does not affect the next call, on one node and on several nodes.
#[test]
#[ignore = "needs GPUs"]
fn calls_after_invalid_calls_are_right() {
    let _limit = TimeLimit::start("calls after wrong ones", Duration::from_secs(240));
    for world in worlds(1) {
        let (full, last) = (vec![50; world as usize], world as usize - 1);
        for nodes in (1..=world).filter(|nodes| world % nodes == 0) {
            let layer = Layer::new(world, 4 * u64::from(world), 1, 50);
            let layer = layer.across(nodes, Faults::default());
            let right = |_: usize, token: usize| vec![(token % 4) as i32];
            let wrong = move |rank, token| vec![if (rank, token) == (last, 7) { -2 } else { 0 }];
            let choices = layer.clone().call(&full, wrong).call(&full, right);
            let parts = ["call 1", "token 7", "expert -2"];
            all_recover(&choices, Backend::Gpus, &invalid_calls(false), &parts);
            let full_rows = 50 * world;
            let small = Layer {
                max_rows: Some(full_rows - 1),
                ..layer.clone()
            };
            let fewer = vec![49; world as usize];
            let alike = small.call(&full, |_, _| vec![0]).call(&fewer, right);
            let rows = format!("{full_rows} rows");
            all_recover(
                &alike,
                Backend::Gpus,
                &invalid_calls(false),
                &["rank 0, call 1", &rows],
            );
            let places = layer.call(&full, right).call(&full, right);
            let parts = ["rank 0, call 1", "choice 0 of token 1"];
            all_recover(&places, Backend::Gpus, &invalid_calls(true), &parts);
        }
    }
}

/// Checks without a GPU that the expected results are exact in bf16, so that every order of additions gives these results.
#[test]
fn every_layer_is_exact() {
    // In other topologies, tokens and experts of a rank do not change.
    for (world, nodes) in [(1, 1), (4, 1), (4, 2), (4, 4)] {
        for (name, layer) in layers(world, nodes) {
            assert!(layer.is_exact(), "{name} on {world} ranks, {nodes} nodes");
        }
    }
}
