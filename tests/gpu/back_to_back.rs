//! Tests of hundreds of back-to-back calls by ranks that are out of step.

use crate::ranks::{GemmProblem, Operands, expect_right, launch, on_ranks, prepare, seed, worlds};
use mkernel::{
    Communicator, Operator,
    spec::{BLayout, Epilogue, GemmOp, GemmShape, Transfer, Tuning},
};
use mkernel_testing::lab::{Failure, Lab, Matrix, Random, TimeLimit};
use std::time::Duration;

const CALLS: usize = 200;
/// The number of different A that calls use.
const POOL: usize = 5;

/// A choice of late ranks.
#[derive(Clone, Copy)]
pub enum Skew {
    /// Every rank is late from time to time, on the host or on the GPU.
    Random,
    /// One rank is late before every call.
    Always {
        /// The late rank.
        rank: u32,
    },
}

fn pushed(comm_ctas: u32) -> Tuning {
    Tuning {
        transfer: Some(Transfer::SmPush),
        comm_ctas: Some(comm_ctas),
        ..Tuning::default()
    }
}

fn copied() -> Tuning {
    Tuning {
        transfer: Some(Transfer::CopyEngine),
        ..Tuning::default()
    }
}

#[test]
#[ignore = "needs GPUs"]
fn pushes_by_communication_ctas_are_right() {
    run(
        GemmShape {
            m: 4096,
            n: 520,
            k: 1032,
        },
        pushed(8),
        Skew::Random,
    );
}

#[test]
#[ignore = "needs GPUs"]
fn pushes_by_every_cta_are_right() {
    run(
        GemmShape {
            m: 2048,
            n: 1024,
            k: 520,
        },
        pushed(0),
        Skew::Random,
    );
}

#[test]
#[ignore = "needs GPUs"]
fn tiles_that_straddle_shards_are_right() {
    run(
        GemmShape {
            m: 1000,
            n: 264,
            k: 1000,
        },
        Tuning::default(),
        Skew::Random,
    );
}

#[test]
#[ignore = "needs GPUs"]
fn copies_by_copy_engines_are_right() {
    run(
        GemmShape {
            m: 4096,
            n: 520,
            k: 1032,
        },
        copied(),
        Skew::Random,
    );
}

#[test]
#[ignore = "needs GPUs"]
fn ranks_without_rows_wait_for_a_slow_rank() {
    let small = |m| GemmShape { m, n: 264, k: 136 };
    run(small(1), Tuning::default(), Skew::Always { rank: 1 });
    run(small(9), Tuning::default(), Skew::Always { rank: 0 });
}

#[test]
#[ignore = "needs GPUs"]
fn copies_of_a_slow_rank_are_right() {
    run(
        GemmShape {
            m: 2048,
            n: 264,
            k: 520,
        },
        copied(),
        Skew::Always { rank: 1 },
    );
}

fn summed(
    op: GemmOp,
    (m, n, k): (u64, u64, u64),
    round_tiles: Option<u32>,
    shots: Option<u32>,
) -> GemmProblem {
    GemmProblem {
        op,
        shape: GemmShape { m, n, k },
        layout: BLayout::Nk,
        epilogue: Epilogue::default(),
        tuning: Tuning {
            round_tiles,
            shots,
            ..Tuning::default()
        },
        nodes: 1,
    }
}

#[test]
#[ignore = "needs GPUs"]
fn gemm_rs_is_right() {
    let rs = |shape, round_tiles| summed(GemmOp::GemmRs, shape, round_tiles, None);
    run_problem(rs((4096, 1032, 520), Some(4)), Skew::Random);
    run_problem(rs((1000, 264, 1000), Some(u32::MAX >> 12)), Skew::Random);
}

#[test]
#[ignore = "needs GPUs"]
fn gemm_rs_with_ranks_without_rows_is_right() {
    for shots in [1, 2] {
        let rs = |m| summed(GemmOp::GemmRs, (m, 264, 136), None, Some(shots));
        run_problem(rs(1), Skew::Always { rank: 1 });
        run_problem(rs(1), Skew::Always { rank: 0 });
        run_problem(rs(9), Skew::Always { rank: 0 });
    }
}

#[test]
#[ignore = "needs GPUs"]
fn gemm_ar_is_right() {
    let ar = |shape, shots| summed(GemmOp::GemmAr, shape, None, Some(shots));
    run_problem(ar((2048, 1032, 520), 2), Skew::Random);
    run_problem(ar((300, 1032, 520), 1), Skew::Random);
    run_problem(ar((16, 136, 520), 1), Skew::Always { rank: 1 });
    // Fewer tiles than ranks.
    run_problem(ar((16, 136, 520), 2), Skew::Always { rank: 1 });
    run_problem(ar((16, 136, 520), 2), Skew::Always { rank: 0 });
}

fn run(shape: GemmShape, tuning: Tuning, skew: Skew) {
    run_problem((shape, BLayout::Nk, tuning).into(), skew);
}

fn run_problem(problem: GemmProblem, skew: Skew) {
    let _limit = TimeLimit::start("calls back to back", Duration::from_secs(120));
    let seed = seed();
    for world in worlds(2) {
        on_ranks(world, |ranks| calls(ranks, problem, skew, seed));
    }
}

/// Makes many calls on one rank, and compares the checksum of each C with the checksum of a right C.
pub fn calls(
    ranks: &Communicator,
    problem: GemmProblem,
    skew: Skew,
    seed: u64,
) -> Result<(), Failure> {
    let lab = Lab::new(&ranks.default_stream())?;
    let (operator, operands) = prepare(ranks, &lab, problem, 0)?;
    operands.fill_b(&lab, seed, ranks.rank())?;
    let (pool, expected) = pool(ranks, &lab, &operator, &operands, seed)?;

    // All ranks choose the same A for a call, but each rank is late at different times.
    let mut choices = Random(seed);
    let mut delays = Random(seed + 1 + u64::from(ranks.rank()));
    let sums = lab.stream.clone_htod(&[0u64; CALLS])?;
    let mut chosen = Vec::new();
    for call in 0..CALLS {
        let choice = choices.below(POOL as u64) as usize;
        chosen.push(choice);
        delay(&lab, skew, ranks.rank(), &mut delays)?;
        lab.poison(&operands.c)?;
        let mut raw = operands.raw();
        raw[0] = pool[choice].operand();
        launch(&operator, &lab.stream, &raw)?;
        lab.checksum(&operands.c, &sums, call)?;
    }
    ranks.synchronize(&lab.stream)?;
    // Equal checksums mean equal bits. So each call is right, and all calls with one A have equal bits.
    for (call, (sum, choice)) in lab.read(&sums)?.into_iter().zip(chosen).enumerate() {
        if sum != expected[choice] {
            return Err(format!("call {call}, with A number {choice}, is wrong").into());
        }
    }
    // No rank frees memory before its peers are done, since freeing can wait for their GPUs.
    Ok(ranks.barrier()?)
}

/// Returns several A, and for each A the checksum of a C that was compared with the reference.
fn pool(
    ranks: &Communicator,
    lab: &Lab,
    operator: &Operator,
    operands: &Operands,
    seed: u64,
) -> Result<(Vec<Matrix>, Vec<u64>), Failure> {
    let own = operands.a();
    let verdicts = lab.verdicts(POOL)?;
    let sums = lab.stream.clone_htod(&[0u64; POOL])?;
    let mut seeds = Random(seed);
    let mut pool = Vec::new();
    for slot in 0..POOL {
        let seed = seeds.draw();
        operands.fill_a(lab, seed)?;
        operands.call(lab, operator, &verdicts, slot)?;
        lab.checksum(&operands.c, &sums, slot)?;
        let a = lab.matrix(own.rows, own.cols, 0)?;
        operands.copy_a(lab, seed, &a)?;
        pool.push(a);
    }
    expect_right(ranks, lab, &verdicts)?;
    Ok((pool, lab.read(&sums)?))
}

/// Delays this rank before a call.
fn delay(lab: &Lab, skew: Skew, rank: u32, random: &mut Random) -> Result<(), Failure> {
    match skew {
        Skew::Random => match random.below(20) {
            0 => std::thread::sleep(Duration::from_micros(random.below(2000))),
            1 | 2 => lab.spin(Duration::from_micros(random.below(500)))?,
            _ => {}
        },
        Skew::Always { rank: slow } if slow == rank => lab.spin(Duration::from_micros(200))?,
        Skew::Always { .. } => {}
    }
    Ok(())
}
