//! Operators of one communicator in turn, which share its memory and its endpoint. Arrival words count the puts of all
//! operators.

use mkernel::KernelConfig;
use mkernel_testing::jobs::{Backend, Machine, Turns, bad_network, none_fails};
use mkernel_testing::kinds::{COMBINE, DISPATCH, ten_kinds};
use mkernel_testing::lab::Random;
use std::collections::BTreeSet;

/// The number of seeds of the usual test.
const SEEDS: u64 = 4;
/// The number of seeds of the ignored test.
const MANY_SEEDS: u64 = 1000;
/// The number of calls of a seed.
const CALLS: u64 = 8;

/// Makes calls of two to five operators of different kinds without a pause, on a network with all faults.
fn take_turns(seed: u64) -> Result<(), String> {
    let mut numbers = Random(seed);
    let configs = operators(&mut numbers);
    let order: Vec<_> = (0..CALLS)
        .map(|_| numbers.below(configs.len() as u64) as usize)
        .collect();
    let machine = Machine {
        world: 4,
        sms: 4,
        skew: 60,
    };
    let backend = Backend::Simulated { seed };
    let outcome = machine.run_over(&bad_network(), backend, |ranks| {
        let mut turns = Turns::new(ranks, &configs, &order)?;
        for _ in &order {
            turns.call()?;
        }
        turns.check()
    });
    outcome
        .map(drop)
        .map_err(|failure| format!("seed {seed}, calls {order:?} of {configs:?}: {failure}"))
}

/// Chooses two to five operators. `combine` takes row indices from `dispatch_gemm`, so it needs that operator.
fn operators(numbers: &mut Random) -> Vec<KernelConfig> {
    let kinds = ten_kinds(4, 2);
    let count = 2 + numbers.below(4) as usize;
    let mut chosen = BTreeSet::new();
    while chosen.len() < count {
        chosen.insert(numbers.below(kinds.len() as u64) as usize);
    }
    if chosen.contains(&COMBINE) {
        chosen.insert(DISPATCH);
    }
    chosen.into_iter().map(|kind| kinds[kind].clone()).collect()
}

#[test]
fn operators_of_a_communicator_take_turns() {
    let seeds: Vec<_> = (0..SEEDS).collect();
    none_fails(&seeds, |seed| take_turns(*seed));
}

#[test]
#[ignore = "takes about an hour"]
fn operators_take_turns_with_many_seeds() {
    let seeds: Vec<_> = (0..MANY_SEEDS).collect();
    none_fails(&seeds, |seed| take_turns(*seed));
}
