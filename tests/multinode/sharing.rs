//! Operators of one communicator in turn. They share its endpoint, whose arrival words count the puts of all of them.

use crate::bad_network;
use crate::rank::{Rank, on_ranks};
use mkernel::GemmOp;

const SEEDS: u64 = 6;

/// The order of the calls of a seed: 8 calls of operators 0 to 2.
fn order(seed: u64) -> impl Iterator<Item = usize> {
    // The digits of a number in base 3. Each seed gets another one.
    let number = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (0..8).map(move |call| (number / 3u64.pow(call) % 3) as usize)
}

/// Calls of different operators follow each other without a pause, on a network with all faults.
#[test]
fn operators_of_a_communicator_take_turns() {
    for seed in 0..SEEDS {
        on_ranks(GemmOp::AgGemm, seed, bad_network(), |first| {
            let others = [GemmOp::GemmRs, GemmOp::GemmAr].map(|op| first.another(op));
            let operators: Vec<&Rank> = [&first].into_iter().chain(&others).collect();
            let calls: Vec<_> = order(seed)
                .map(|number| {
                    let rank = operators[number];
                    let mut c = rank.poisoned();
                    rank.launch(&mut c).expect("launched");
                    (rank, c)
                })
                .collect();
            for (rank, c) in &calls {
                rank.check(c);
            }
            assert_eq!(first.ranks.findings(), []);
        });
    }
}
