//! Tests of measured choices on simulated GPUs: the plans of operators, and ranks with different choices.

#![cfg(feature = "simulator")]

use mkernel::spec::plan::{TunedKernel, TunedTimes};
use mkernel::spec::{Dim, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel::testing::in_threads;
use mkernel::{Communicator, Error, KernelConfig, Operator, Simulation, Tuned};

const SHAPE: GemmShape = GemmShape {
    m: 128,
    n: 256,
    k: 256,
};

fn config(tile_m: Option<u32>) -> KernelConfig {
    let gemm = GemmConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        k: Dim::Static(SHAPE.k),
        tuning: Tuning {
            tile_m,
            ..Tuning::default()
        },
        ..GemmConfig::new(GemmOp::GemmRs)
    };
    KernelConfig::new(2, gemm)
}

/// Prepares the kernel on two ranks, where ranks from `first` on have the choice of this tile.
fn prepared(tile_m: u32, first: u32) -> Vec<Result<Operator, Error>> {
    let simulation = Simulation {
        ranks: 2,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&simulation).expect("simulated GPUs");
    let run = |ranks: Communicator| {
        if ranks.rank() >= first {
            let times = TunedTimes {
                us: 1.0,
                untuned_us: 2.0,
            };
            let mut tuned = Tuned::default();
            tuned.replace(TunedKernel::new(
                config(Some(tile_m)),
                ranks.device(),
                times,
            ));
            ranks.set_tuned(tuned);
        }
        ranks.prepare(&config(None), SHAPE)
    };
    in_threads(ranks, run)
}

#[test]
fn operators_have_the_choices_that_a_program_sets() {
    for tile_m in [64, 128] {
        for operator in prepared(tile_m, 0) {
            let operator = operator.expect("prepared");
            let plan = operator.plan();
            assert_eq!(plan.gemm().expect("a GEMM").tile.m, tile_m);
            assert_eq!(plan.tuned.map(|times| times.us), Some(1.0));
        }
    }
}

#[test]
fn ranks_with_other_choices_are_named() {
    let of_model = prepared(64, 2).remove(0).expect("prepared");
    let of_model = of_model.plan().gemm().expect("a GEMM").tile.m;
    let other = if of_model == 64 { 128 } else { 64 };
    for result in prepared(other, 1) {
        let error = result.expect_err("the ranks differ");
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("by measured choices (MKERNEL_TUNED)"),
            "{text}"
        );
    }
}
