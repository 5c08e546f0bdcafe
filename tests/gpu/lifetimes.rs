//! Tests of several operators at once, and of free memory after operators and communicators have been dropped.

use crate::ranks::{compute, expect_right, on_ranks, prepare, seed, worlds};
use mkernel::{
    Communicator,
    spec::{BLayout, GemmShape, Transfer, Tuning},
};
use mkernel_testing::lab::{Failure, Lab, Random, TimeLimit};
use std::time::Duration;

const MIB: usize = 1 << 20;
/// The memory that other users of the GPUs and the pools of the driver may take during a test.
const TOLERANCE_BYTES: usize = 16 * MIB;

fn with(transfer: Transfer) -> Tuning {
    Tuning {
        transfer: Some(transfer),
        ..Tuning::default()
    }
}

#[test]
#[ignore = "needs GPUs"]
fn operators_of_several_shapes_take_turns_on_two_streams() {
    let _limit = TimeLimit::start("several operators", Duration::from_secs(120));
    let seed = seed();
    for world in worlds(2) {
        on_ranks(world, |ranks| take_turns(ranks, seed));
    }
}

/// Returns problems of several shapes, layouts of B and transfers.
fn problems() -> [(GemmShape, BLayout, Tuning); 4] {
    let shape = |m, n, k| GemmShape { m, n, k };
    [
        (shape(2048, 264, 520), BLayout::Nk, with(Transfer::SmPush)),
        (
            shape(2048, 264, 520),
            BLayout::Kn,
            with(Transfer::CopyEngine),
        ),
        (shape(1000, 136, 264), BLayout::Nk, Tuning::default()),
        (
            shape(4096, 520, 136),
            BLayout::Kn,
            with(Transfer::CopyEngine),
        ),
    ]
}

/// Calls all operators in each round, alternately on two streams, and checks every result.
fn take_turns(ranks: &Communicator, seed: u64) -> Result<(), Failure> {
    const ROUNDS: usize = 20;
    let labs = [
        Lab::new(&ranks.context().new_stream()?)?,
        Lab::new(&ranks.context().new_stream()?)?,
    ];
    let mut prepared = Vec::new();
    for (i, problem) in problems().into_iter().enumerate() {
        let lab = &labs[i % 2];
        let (operator, operands) = prepare(ranks, lab, problem, 0)?;
        operands.fill_b(lab, seed, ranks.rank())?;
        prepared.push((lab, operator, operands, lab.verdicts(ROUNDS)?));
    }
    // The order of the operators is equal on all ranks, and changes in each round.
    let mut order = Random(seed);
    for round in 0..ROUNDS {
        let first = order.below(prepared.len() as u64) as usize;
        for i in 0..prepared.len() {
            let (lab, operator, operands, verdicts) = &prepared[(first + i) % prepared.len()];
            operands.fill_a(lab, order.draw())?;
            operands.call(lab, operator, verdicts, round)?;
        }
    }
    for (lab, _, _, verdicts) in &prepared {
        expect_right(ranks, lab, verdicts)?;
    }
    Ok(ranks.barrier()?)
}

#[test]
#[ignore = "needs GPUs"]
fn dropped_operators_and_communicators_free_their_memory() {
    let _limit = TimeLimit::start("lifetimes", Duration::from_secs(120));
    let seed = seed();
    for world in worlds(1) {
        // The first time, the driver allocates contexts, modules and pools, which it keeps.
        let mut free = free_after_drop(world, seed);
        for _ in 0..3 {
            let before = free;
            free = free_after_drop(world, seed);
            for (rank, (before, after)) in before.iter().zip(&free).enumerate() {
                assert!(
                    after + TOLERANCE_BYTES > *before,
                    "GPU {rank} of {world}: {} MiB free before, {} MiB after",
                    before / MIB,
                    after / MIB
                );
            }
        }
    }
}

/// Creates communicators and operators with workspaces of 64 MiB, makes calls, and drops everything. Returns the memory
/// that is free afterwards, by rank.
fn free_after_drop(world: u32, seed: u64) -> Vec<usize> {
    let large = GemmShape {
        m: 4096,
        n: 256,
        k: 4096,
    };
    on_ranks(world, |ranks| {
        let lab = Lab::new(&ranks.default_stream())?;
        let tunings = match world {
            1 => vec![Tuning::default()],
            _ => vec![with(Transfer::SmPush), with(Transfer::CopyEngine)],
        };
        let free_at_first = ranks.context().mem_get_info()?.0;
        for tuning in tunings {
            let (operator, operands) = prepare(ranks, &lab, (large, BLayout::Nk, tuning), 0)?;
            compute(ranks, &lab, &operator, &operands, (2, seed))?;
            let taken = free_at_first.saturating_sub(ranks.context().mem_get_info()?.0);
            // With smaller workspaces, the test would not notice a leak.
            if world > 1 && taken < 64 * MIB {
                return Err(format!("an operator takes {} MiB only", taken / MIB).into());
            }
            ranks.barrier()?;
        }
        Ok(())
    });
    on_ranks(world, |ranks| {
        ranks.context().synchronize()?;
        ranks.barrier()?;
        Ok(ranks.context().mem_get_info()?.0)
    })
}
