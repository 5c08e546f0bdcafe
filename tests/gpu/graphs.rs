//! Tests of calls in a CUDA graph that is replayed with new data, and of launches between the replays.

use crate::ranks::{GemmProblem, Operands, expect_right, launch, on_ranks, prepare, seed, worlds};
use mkernel::{
    Communicator,
    spec::{BLayout, Epilogue, GemmOp, GemmShape, Transfer, Tuning},
};
use mkernel_testing::graph::Graph;
use mkernel_testing::lab::{Failure, Lab, Random, TimeLimit};
use std::time::Duration;

const REPLAYS: usize = 20;
/// The number of replays between launches outside of the graph.
const EAGER_EVERY: usize = 3;

#[test]
#[ignore = "needs GPUs"]
fn pushes_are_replayed() {
    run(Transfer::SmPush);
}

#[test]
#[ignore = "needs GPUs"]
fn copies_are_replayed() {
    run(Transfer::CopyEngine);
}

#[test]
#[ignore = "needs GPUs"]
fn sums_are_replayed() {
    for (op, shots) in [
        (GemmOp::GemmRs, None),
        (GemmOp::GemmAr, Some(1)),
        (GemmOp::GemmAr, Some(2)),
    ] {
        let tuning = Tuning {
            shots,
            ..Tuning::default()
        };
        run_problem(GemmProblem {
            op,
            shape: FIRST,
            layout: BLayout::Nk,
            epilogue: Epilogue::default(),
            tuning,
            nodes: 1,
        });
    }
}

fn run(transfer: Transfer) {
    let tuning = Tuning {
        transfer: Some(transfer),
        ..Tuning::default()
    };
    run_problem((FIRST, BLayout::Nk, tuning).into());
}

fn run_problem(problem: GemmProblem) {
    let _limit = TimeLimit::start("a replayed graph", Duration::from_secs(120));
    let seed = seed();
    for world in worlds(2) {
        on_ranks(world, |ranks| replays(ranks, problem, seed));
    }
}

const FIRST: GemmShape = GemmShape {
    m: 2048,
    n: 264,
    k: 520,
};
const OTHER: GemmShape = GemmShape {
    m: 1024,
    n: 520,
    k: 264,
};

/// Captures two calls of one operator and a call of another operator, and replays the graph with new data.
pub fn replays(ranks: &Communicator, problem: GemmProblem, seed: u64) -> Result<(), Failure> {
    // The default stream cannot be captured.
    let lab = Lab::new(&ranks.context().new_stream()?)?;
    let (first, one) = prepare(ranks, &lab, problem, 0)?;
    let two = Operands::new(ranks, &lab, problem, 8)?;
    let other = GemmProblem {
        nodes: problem.nodes,
        ..(OTHER, BLayout::Kn, Tuning::default()).into()
    };
    let (other, three) = prepare(ranks, &lab, other, 8)?;
    let calls = [(&first, &one), (&first, &two), (&other, &three)];
    let mut seeds = Random(seed);
    for (_, operands) in calls {
        operands.fill_b(&lab, seeds.draw(), ranks.rank())?;
    }
    lab.stream.synchronize()?;

    let graph = Graph::capture(ranks, &lab.stream, || {
        for (operator, operands) in calls {
            launch(operator, &lab.stream, &operands.raw())?;
        }
        Ok(())
    })?;

    let verdicts = lab.verdicts(REPLAYS * calls.len())?;
    let eager_verdicts = lab.verdicts(REPLAYS / EAGER_EVERY)?;
    for replay in 0..REPLAYS {
        for (_, operands) in calls {
            operands.fill_a(&lab, seeds.draw())?;
            lab.poison(&operands.c)?;
        }
        graph.launch(&lab.stream)?;
        for (i, (_, operands)) in calls.into_iter().enumerate() {
            operands.check(&lab, &verdicts, replay * calls.len() + i)?;
        }
        if replay % EAGER_EVERY == EAGER_EVERY - 1 {
            let (operator, operands) = calls[replay % 2];
            operands.fill_a(&lab, seeds.draw())?;
            operands.call(&lab, operator, &eager_verdicts, replay / EAGER_EVERY)?;
        }
    }
    expect_right(ranks, &lab, &verdicts)?;
    expect_right(ranks, &lab, &eager_verdicts)?;
    // No rank frees memory before its peers are done, since freeing can wait for their GPUs.
    Ok(ranks.barrier()?)
}
