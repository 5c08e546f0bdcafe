//! Tests of groups of ranks that `Communicator::split` makes.

use crate::ranks::{GemmProblem, compute, on_ranks, prepare, seed, worlds};
use mkernel::{
    Communicator, KernelPlan,
    spec::{BLayout, GemmOp, GemmShape, Transfer, Tuning, spec::WORLDS},
};
use mkernel_testing::lab::{Failure, Lab, TimeLimit};
use mkernel_testing::ranks::{devices_of_tests, gpus_of_ranks};
use std::time::Duration;

/// The number of rounds, each with a call of every group's operators.
const ROUNDS: u64 = 5;

/// Groups have plans for the devices of all ranks, also for ranks that share a GPU.
#[test]
fn groups_of_every_size_have_plans() {
    for world in WORLDS {
        for device in devices_of_tests(world) {
            for size in WORLDS.into_iter().filter(|size| *size <= world) {
                for problem in problems() {
                    let plan = KernelPlan::new(&problem.spec(size), &device);
                    plan.unwrap_or_else(|error| panic!("{size} of {world}, {problem:?}: {error}"));
                }
            }
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn operators_of_groups_take_turns() {
    let _limit = TimeLimit::start("groups", Duration::from_secs(240));
    let seed = seed();
    for world in worlds(2) {
        on_ranks(world, |ranks| take_turns(ranks, seed));
    }
}

/// Returns problems with and without copy engines, and a problem that reduces.
fn problems() -> [GemmProblem; 3] {
    let gathered = |transfer| {
        let tuning = Tuning {
            transfer: Some(transfer),
            ..Tuning::default()
        };
        GemmProblem::from((SHAPE, BLayout::Nk, tuning))
    };
    let reduced = GemmProblem {
        op: GemmOp::GemmAr,
        ..GemmProblem::from((SHAPE, BLayout::Nk, Tuning::default()))
    };
    [
        gathered(Transfer::SmPush),
        gathered(Transfer::CopyEngine),
        reduced,
    ]
}

const SHAPE: GemmShape = GemmShape {
    m: 1024,
    n: 264,
    k: 520,
};

/// Splits the ranks into groups of one rank, all ranks in reverse order, and the rows and columns of a grid, as far as the world
/// allows. Calls operators of all groups, and of all ranks, on one stream.
fn take_turns(ranks: &Communicator, seed: u64) -> Result<(), Failure> {
    let (rank, world) = (ranks.rank(), ranks.world());
    let rows = (0..).map(|bits| 1 << bits).take_while(|row| *row <= world);
    let mut groups = Vec::new();
    for row in rows {
        for color in [rank / row, rank % row] {
            let group = ranks.split(Some(color), -(rank as i32))?;
            groups.push(group.ok_or("no group")?);
        }
    }
    let expected: Vec<u32> = (0..world).rev().collect();
    let is_reversed = groups.iter().any(|group| group.job_ranks() == expected);
    if !is_reversed || !groups.iter().any(|group| group.world() == 1) {
        return Err(format!("{groups:?}").into());
    }
    let lab = Lab::new(&ranks.default_stream())?;
    let mut prepared = Vec::new();
    for group in groups.iter().chain([ranks]) {
        for problem in problems() {
            prepared.push((group, prepare(group, &lab, problem, 0)?));
        }
    }
    for round in 0..ROUNDS {
        for (group, (operator, operands)) in &prepared {
            compute(group, &lab, operator, operands, (1, seed + round))?;
        }
    }
    Ok(ranks.barrier()?)
}

/// Groups with reversed ranks are used after the communicator of all ranks was dropped.
#[test]
#[ignore = "needs GPUs"]
fn groups_outlive_the_communicator_that_was_split() {
    let _limit = TimeLimit::start("groups that outlive", Duration::from_secs(120));
    let seed = seed();
    for world in worlds(2) {
        let gpus = gpus_of_ranks(world).expect("GPUs");
        let all = Communicator::local(&gpus).expect("communicators");
        let outcome = mkernel::run(all, |ranks| {
            let reversed = ranks.split(Some(0), -(ranks.rank() as i32))?;
            let reversed = reversed.ok_or("no group")?;
            drop(ranks);
            let lab = Lab::new(&reversed.default_stream())?;
            let [problem, ..] = problems();
            let (operator, operands) = prepare(&reversed, &lab, problem, 0)?;
            compute(&reversed, &lab, &operator, &operands, (3, seed))?;
            Ok::<_, Failure>(reversed.barrier()?)
        });
        outcome.unwrap_or_else(|error| panic!("world {world}: {error}"));
    }
}
