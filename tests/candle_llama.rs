//! `examples/candle_llama.rs` at toy size, on simulated GPUs: the tokens of 1, 2 and 4 ranks are those of candle alone.

#[expect(dead_code, reason = "tests do not call `main`")]
#[path = "../examples/candle_llama.rs"]
mod example;

use example::decode::{Choices, compare};
use example::weights::{Sizes, Source};
use example::{Job, on_ranks};
use mkernel::{Communicator, Simulation};

#[test]
fn tokens_are_those_of_candle_in_every_world() {
    let job = Job {
        sizes: Sizes::TOY,
        source: Source::Seed {
            seed: 142,
            successors: false,
        },
        batch: 2,
        steps: 8,
        start: 1,
        fused_only: false,
    };
    let mut reference: Option<Choices> = None;
    for world in [1, 2, 4] {
        let simulation = Simulation {
            ranks: world,
            ..Simulation::default()
        };
        let communicators = Communicator::simulated(&simulation).expect("simulated GPUs");
        let outcomes = on_ranks(communicators, &job).expect("a run");
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

fn tokens(choices: &Choices) -> Vec<Vec<u32>> {
    let tokens = |sequence: &Vec<_>| {
        sequence
            .iter()
            .map(|choice: &example::decode::Choice| choice.token)
            .collect()
    };
    choices.iter().map(tokens).collect()
}
