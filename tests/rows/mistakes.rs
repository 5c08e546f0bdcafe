//! Tests of calls that give their rows in a wrong way: every rank gets an error that names the mistake.

use mkernel::cudarc::driver::CudaStream;
use mkernel::half::bf16;
use mkernel::spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Transfer, Tuning};
use mkernel::{Communicator, Error, ErrorKind, KernelConfig, Operand, Operator};
use mkernel_testing::jobs::{Backend, Machine};
use std::sync::Arc;
use std::time::Duration;

const SHAPE: GemmShape = GemmShape {
    m: 96,
    n: 136,
    k: 72,
};

/// Runs `body` on every rank with an operator that takes up to 96 rows, and its stream.
fn on_ranks(
    (nodes, local_world): (u32, u32),
    op: GemmOp,
    seed: u64,
    body: impl Fn(&Communicator, &Operator, &Arc<CudaStream>) -> Result<(), Error> + Sync,
) -> Vec<Result<(), String>> {
    let machine = Machine {
        world: nodes * local_world,
        sms: 4,
        skew: 60,
    };
    let config = KernelConfig {
        nodes,
        ..KernelConfig::new(machine.world, GemmConfig::new(op))
    };
    let outcomes = machine.run_ranks(Backend::Simulated { seed }, |ranks, _| {
        let operator = ranks.prepare(&config, SHAPE)?;
        ranks.set_timeout(Duration::from_secs(60));
        Ok(body(ranks, &operator, &ranks.context().default_stream())?)
    });
    outcomes.expect("communicators")
}

/// Makes a call with this number of rows, which is passed in memory.
fn call(
    ranks: &Communicator,
    operator: &Operator,
    stream: &Arc<CudaStream>,
    rows: i32,
) -> Result<(), Error> {
    let ones = |elems: u64| {
        stream
            .clone_htod(&vec![bf16::ONE; elems as usize])
            .expect("memory")
    };
    let (a, b) = (ones(SHAPE.m * SHAPE.k), ones(SHAPE.n * SHAPE.k));
    let mut c = ones(SHAPE.m * SHAPE.n);
    let rows = stream.clone_htod(&[rows]).expect("memory");
    let call = operator
        .call(stream)
        .read(Operand::A, &a)
        .read(Operand::B, &b);
    let call = call.write::<bf16, _>(Operand::C, &mut c);
    call.rows_in(&rows).launch()?;
    ranks.synchronize(stream)
}

/// The error comes from every rank. The rows of A of all ranks lie side by side, so ranks with different numbers of rows may
/// write to the same place, which the simulator reports. A rank without rows does not.
#[test]
fn different_rows_are_an_error_that_names_two_ranks() {
    let kinds = [
        ((1, 2), GemmOp::AgGemm, 0),
        ((1, 4), GemmOp::GemmRs, 7),
        ((1, 4), GemmOp::GemmAr, 7),
        ((2, 2), GemmOp::GemmAr, 7),
        ((2, 1), GemmOp::AgGemm, 0),
    ];
    for (seed, (topology, op, other)) in (0..).zip(kinds) {
        let outcomes = on_ranks(topology, op, seed, |ranks, operator, stream| {
            let rows = if ranks.rank() == 1 { other } else { 96 };
            let error = call(ranks, operator, stream, rows).expect_err("different rows");
            assert_ne!(error.kind(), ErrorKind::Simulation, "{error}");
            Err(error)
        });
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            let failure = outcome.expect_err("different rows");
            let [has, begins] = [format!("with {other} rows"), format!("with {other}. Give")];
            let is_named = failure.contains(&has) || failure.contains(&begins);
            // A rank of another node that has no contact to rank 1 only knows who does.
            let is_far = topology == (2, 2) && rank == 2;
            let is_named = is_named || is_far && failure.contains("its own error has the cause");
            assert!(is_named, "{topology:?} {op:?}, rank {rank}: {failure}");
        }
    }
}

/// The communicator can be used after that.
#[test]
fn more_rows_than_prepared_are_an_error_of_their_call() {
    let kinds = [
        ((1, 1), GemmOp::AgGemm),
        ((1, 4), GemmOp::GemmRs),
        ((1, 2), GemmOp::AgGemm),
        ((2, 2), GemmOp::GemmAr),
    ];
    for (topology, op) in kinds {
        let outcomes = on_ranks(topology, op, 0, |ranks, operator, stream| {
            assert_eq!(operator.plan().max_rows(), Some(SHAPE.m));
            let error = call(ranks, operator, stream, 97).expect_err("too many rows");
            assert_eq!(error.kind(), ErrorKind::Values, "{error}");
            let text = error.to_string();
            assert!(text.contains("call 1: the call has 97 rows"), "{text}");
            call(ranks, operator, stream, 96)
        });
        for outcome in outcomes {
            assert_eq!(outcome, Ok(()), "{topology:?} {op:?}");
        }
    }
}

/// Choices that need a constant number of rows are refused, also while the number is not known.
#[test]
fn choices_for_constant_rows_are_refused() {
    for m in [Dim::DYNAMIC, Dim::UpTo { most: 4096 }] {
        let config = GemmConfig {
            m,
            b_layout: BLayout::Nk,
            tuning: Tuning {
                transfer: Some(Transfer::CopyEngine),
                pace_steps: Some(4),
                ..Tuning::default()
            },
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        let refused = mkernel::spec::KernelSpec::validate(KernelConfig::new(4, config));
        let text = refused.expect_err("two choices").to_string();
        assert!(text.contains("the host knows"), "{text}");
        assert!(text.contains("keep pace only"), "{text}");
    }
}
