//! `examples/candle_llama.rs` at toy size, on simulated GPUs: 1, 2 and 4 ranks generate the tokens of candle alone.

#[expect(dead_code, reason = "tests do not call `main`")]
#[path = "../examples/candle_llama.rs"]
mod example;

use candle_core::Device;
use example::decode::{Choices, compare};
use example::weights::{Part, Sizes, Source, Weights};
use example::{Job, Outcome, on_ranks};
use mkernel::{Communicator, Simulation};
use std::collections::HashMap;

fn job(source: Source) -> Job {
    Job {
        sizes: Sizes::TOY,
        source,
        batch: 2,
        steps: 8,
        start: 1,
        fused_only: false,
    }
}

const SEED: Source = Source::Seed {
    seed: 142,
    successors: false,
};

fn run(world: u32, job: &Job) -> Vec<Outcome> {
    let simulation = Simulation {
        ranks: world,
        ..Simulation::default()
    };
    let communicators = Communicator::simulated(&simulation).expect("simulated GPUs");
    on_ranks(communicators, job).expect("a run")
}

#[test]
fn tokens_equal_candle_in_every_world() {
    let job = job(SEED);
    let mut reference: Option<Choices> = None;
    for world in [1, 2, 4] {
        let outcomes = run(world, &job);
        // A world of one rank also runs without mkernel.
        let unfused = outcomes[0].unfused.as_ref().map(|(choices, _)| choices);
        let reference = reference.get_or_insert_with(|| unfused.expect("one rank").clone());
        for (rank, outcome) in outcomes.iter().enumerate() {
            let what = format!("rank {rank} of {world}");
            assert_eq!(outcome.choices, outcomes[0].choices, "{what}");
            assert_eq!(tokens(&outcome.choices), tokens(reference), "{what}");
            let found = compare(reference, &outcome.choices).expect("the same tokens");
            assert!(
                found.gap > 4.0 * found.difference,
                "{what}: by chance, {found}"
            );
        }
    }
    let tokens = tokens(&reference.expect("one rank"));
    assert_ne!(tokens[0], tokens[1], "the sequences begin differently");
    let mut different = tokens[0].clone();
    different.sort_unstable();
    different.dedup();
    assert!(
        different.len() > 3,
        "the tokens depend on what was before: {tokens:?}"
    );
}

/// Names and shapes of the files follow Hugging Face.
#[test]
fn weights_in_files_give_the_same_bits() -> candle_core::Result<()> {
    let weights = Weights::open(&SEED)?;
    let Sizes {
        vocab_size: vocab,
        hidden_size: hidden,
        intermediate_size: wide,
        num_hidden_layers: layers,
        ..
    } = Sizes::TOY;
    let (heads, kv_heads) = (8 * 16, 4 * 16);
    let block = [
        ("input_layernorm", vec![hidden]),
        ("self_attn.q_proj", vec![heads, hidden]),
        ("self_attn.k_proj", vec![kv_heads, hidden]),
        ("self_attn.v_proj", vec![kv_heads, hidden]),
        ("self_attn.o_proj", vec![hidden, heads]),
        ("post_attention_layernorm", vec![hidden]),
        ("mlp.gate_proj", vec![wide, hidden]),
        ("mlp.up_proj", vec![wide, hidden]),
        ("mlp.down_proj", vec![hidden, wide]),
    ];
    let in_blocks = (0..layers).flat_map(|layer| {
        let named = move |(name, shape): &(&str, Vec<usize>)| {
            (format!("model.layers.{layer}.{name}.weight"), shape.clone())
        };
        block.iter().map(named)
    });
    let others = [
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
        ("lm_head.weight".to_owned(), vec![vocab, hidden]),
    ];
    let tensors = in_blocks.chain(others).map(|(name, shape)| {
        let tensor = weights.get(&name, &shape, Part::Whole, &Device::Cpu)?;
        Ok((name, tensor))
    });
    let tensors = tensors.collect::<candle_core::Result<HashMap<_, _>>>()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    candle_core::safetensors::save(&tensors, &path)?;

    let from_files = run(2, &job(Source::Files(vec![path])));
    let from_seed = run(2, &job(SEED));
    assert_eq!(from_files[1].choices, from_seed[0].choices);
    Ok(())
}

fn tokens(choices: &Choices) -> Vec<Vec<u32>> {
    let tokens = |sequence: &Vec<_>| {
        sequence
            .iter()
            .map(|choice: &example::decode::Choice| choice.token)
            .collect()
    };
    choices.iter().map(tokens).collect()
}
