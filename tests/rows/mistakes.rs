//! Tests of calls with wrong numbers of rows: every rank gets an error that names the mistake.

use mkernel::half::bf16;
use mkernel::spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Transfer, Tuning};
use mkernel::{Error, ErrorKind, KernelConfig, Operand};
use mkernel_testing::jobs::prepared::{all_succeed, expect_errors_with_rows, on_ranks};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The SMs of a simulated GPU.
const SMS: u32 = 4;
const SHAPE: GemmShape = GemmShape {
    m: 96,
    n: 136,
    k: 72,
};

/// An operator that takes up to 96 rows, with buckets if plans differ.
fn config((nodes, local_world): (u32, u32), op: GemmOp) -> KernelConfig {
    let config = GemmConfig {
        tuning: Tuning {
            buckets: Some(4),
            ..Tuning::default()
        },
        ..GemmConfig::new(op)
    };
    KernelConfig {
        nodes,
        ..KernelConfig::new(nodes * local_world, config)
    }
}

/// Every rank returns the error. In `ag_gemm` rank 1 has no rows, since shards of different lengths could overlap in the gathered
/// A, which the simulator would report. If the kernel has buckets, the two numbers of rows belong to different buckets.
#[test]
fn different_rows_are_an_error_that_names_two_ranks() {
    let kinds = [
        ((1, 2), GemmOp::AgGemm, 0),
        ((1, 4), GemmOp::GemmRs, 7),
        ((1, 4), GemmOp::GemmAr, 7),
        ((2, 2), GemmOp::GemmAr, 7),
        ((2, 1), GemmOp::AgGemm, 0),
    ];
    let ranks_with_buckets = AtomicUsize::new(0);
    for (seed, (topology, op, other)) in (0..).zip(kinds) {
        let config = config(topology, op);
        let outcomes = on_ranks(&config, SHAPE, (SMS, seed), |rank| {
            let has_buckets = rank.operator.plan().has_buckets();
            ranks_with_buckets.fetch_add(has_buckets.into(), Ordering::Relaxed);
            let rows = if rank.ranks.rank() == 1 { other } else { 96 };
            let error = rank.call_with_rows(rows).expect_err("different rows");
            assert_ne!(error.kind(), ErrorKind::Simulation, "{error}");
            Err(error)
        });
        expect_errors_with_rows(outcomes, &config, other);
    }
    assert_ne!(ranks_with_buckets.into_inner(), 0, "no plan has buckets");
}

/// The communicator stays usable.
#[test]
fn more_rows_than_prepared_are_an_error_of_their_call() {
    let kinds = [
        ((1, 1), GemmOp::AgGemm),
        ((2, 1), GemmOp::Gemm),
        ((1, 4), GemmOp::GemmRs),
        ((1, 2), GemmOp::AgGemm),
        ((2, 2), GemmOp::GemmAr),
    ];
    for (topology, op) in kinds {
        all_succeed(&config(topology, op), SHAPE, (SMS, 0), |rank| {
            assert_eq!(rank.operator.plan().max_rows(), Some(SHAPE.m));
            rank.expect_most_rows(96)
        });
    }
}

/// Options that need a constant number of rows are refused before the number is known.
#[test]
fn options_for_constant_rows_are_refused() {
    for m in [Dim::Dynamic, Dim::UpTo(4096)] {
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

/// Calls of few rows store nothing to results of other ranks, but calls of more rows may.
#[test]
fn another_tensor_on_one_rank_is_an_error_for_few_rows_too() {
    for (seed, shots) in [(0, 1), (1, 2)] {
        let config = GemmConfig {
            symmetric_result: true,
            tuning: Tuning {
                shots: Some(shots),
                ..Tuning::default()
            },
            ..GemmConfig::new(GemmOp::GemmAr)
        };
        let config = KernelConfig::new(4, config);
        all_succeed(&config, SHAPE, (SMS, seed), |rank| {
            let stream = &rank.stream;
            let a = stream.alloc_zeros::<bf16>((SHAPE.m * SHAPE.k) as usize);
            let b = stream.alloc_zeros::<bf16>((SHAPE.k * SHAPE.n) as usize);
            let (a, b) = (a.expect("memory"), b.expect("memory"));
            let elems = (SHAPE.m * SHAPE.n) as usize;
            let [mut c, mut other] =
                [(); 2].map(|()| rank.ranks.alloc::<bf16>(stream, elems).expect("all ranks"));
            let call = |c: &mut mkernel::SymmetricSlice<bf16>| {
                let call = rank.operator.call(stream).read(Operand::A, &a);
                let call = call.read(Operand::B, &b).write(Operand::C, c);
                call.rows(1).launch()?;
                rank.ranks.synchronize(stream)
            };
            call(&mut c)?;
            let is_other = rank.ranks.rank() == 1;
            let error = call(if is_other { &mut other } else { &mut c });
            let error = error.expect_err("the places differ");
            match &error {
                Error::DifferentPlaces { rank, peer, .. } => {
                    assert!(*rank == 1 || *peer == 1, "{error}");
                }
                // A rank that another rank has aborted names the other rank.
                Error::Timeout { aborted_by, .. } => assert!(aborted_by.is_some(), "{error}"),
                _ => panic!("{shots} shots: {error}"),
            }
            Ok(())
        });
    }
}
