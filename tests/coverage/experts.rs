//! Golden configurations of operators that send tokens to experts.

use mkernel_spec::plan::{DispatchPlan, OpPlan, Split};
use mkernel_spec::{BLayout, Dtype, Router, Scores};
use mkernel_testing::golden::Golden;

/// Panics unless the plan of a golden that sends tokens satisfies `is`. `what` describes the plan.
fn some(goldens: &[Golden], what: &str, is: impl Fn(u32, &DispatchPlan) -> bool) {
    super::some(goldens, what, |golden| match &golden.plan.body().op_plan {
        OpPlan::Dispatch(of) => of.dispatches() && is(golden.plan.spec.world(), of),
        _ => false,
    });
}

#[test]
fn goldens_cover_the_code_of_expert_kernels() {
    let goldens = Golden::all();
    for is_alone in [true, false] {
        some(&goldens, "each world", |world, _| (world == 1) == is_alone);
        some(&goldens, "each alignment of tokens", |_, op_plan| {
            op_plan.shape.hidden.is_multiple_of(64) == is_alone
        });
        some(&goldens, "each alignment of columns", |_, op_plan| {
            op_plan
                .shape
                .intermediate
                .is_multiple_of(op_plan.tile_cols().into())
                == is_alone
        });
    }
    for swiglu in [true, false] {
        for split in [Split::Rows, Split::Cols] {
            some(&goldens, "each result of each split", |_, op_plan| {
                (op_plan.config.swiglu, op_plan.split) == (swiglu, split)
            });
        }
        for layout in [BLayout::Kn, BLayout::Nk] {
            some(&goldens, "each result of each layout", |_, op_plan| {
                (op_plan.config.swiglu, op_plan.config.b_layout) == (swiglu, layout)
            });
        }
    }
    for (nodes, local_world) in [(2, 1), (2, 2), (3, 2)] {
        assert!(goldens.iter().any(|g| {
            let topology = g.plan.spec.topology();
            matches!(g.plan.body().op_plan, OpPlan::Dispatch(_))
                && (topology.nodes, topology.local_world) == (nodes, local_world)
        }));
    }
    for (m, n) in [(128, 256), (128, 128), (64, 256), (64, 128)] {
        some(&goldens, &format!("tile {m}x{n}"), |_, op_plan| {
            (op_plan.tile.m, op_plan.tile.n) == (m, n)
        });
    }
    for is_alone in [true, false] {
        assert!(goldens.iter().any(|g| {
            matches!(g.plan.body().op_plan, OpPlan::Combine(_))
                && (g.plan.spec.world() == 1) == is_alone
        }));
    }
}

#[test]
fn goldens_cover_whole_layers_of_experts() {
    let mut goldens = Golden::all();
    goldens.retain(|golden| match &golden.plan.body().op_plan {
        OpPlan::Dispatch(op_plan) => op_plan.is_layer(),
        _ => false,
    });
    for is_first in [true, false] {
        let (split, layout) = match is_first {
            true => (Split::Rows, BLayout::Nk),
            false => (Split::Cols, BLayout::Kn),
        };
        some(&goldens, "a whole layer in each world", |world, _| {
            (world == 1) == is_first
        });
        some(&goldens, "each split of a whole layer", |_, of| {
            of.split == split
        });
        some(&goldens, "each layout of a whole layer", |_, of| {
            of.config.b_layout == layout
        });
    }
}

/// Kernels whose experts have rows before the call.
#[test]
fn goldens_cover_rows_that_return() {
    let mut goldens = Golden::all();
    goldens.retain(|golden| match &golden.plan.body().op_plan {
        OpPlan::Dispatch(op_plan) => !op_plan.dispatches(),
        _ => false,
    });
    for is in [true, false] {
        let of = |is_of: &dyn Fn(u32, &DispatchPlan) -> bool| {
            let plans = goldens
                .iter()
                .filter_map(|golden| match &golden.plan.body().op_plan {
                    OpPlan::Dispatch(of) => Some((golden.plan.spec.world(), of)),
                    _ => None,
                });
            plans.filter(|(world, of)| is_of(*world, of) == is).count() > 0
        };
        assert!(of(&|world, _| world == 1), "rows in each world");
        assert!(
            of(&|_, of| of.config.b_layout == BLayout::Nk),
            "each layout"
        );
        assert!(
            of(&|_, of| of.config.dtype == Dtype::E4m3),
            "each size of elements"
        );
    }
}

/// Each router that changes the code of a kernel has a golden configuration.
#[test]
fn goldens_cover_the_choice_of_experts() {
    let goldens = Golden::all();
    let with = |what: &str, is: &dyn Fn(&Router, &DispatchPlan) -> bool| {
        some(&goldens, what, |_, of| {
            of.config.router.chooses() && is(&of.config.router, of)
        });
    };
    for scores in Scores::ALL {
        some(&goldens, &format!("scores: {scores}"), |_, of| {
            of.config.router.scores == scores
        });
    }
    for is in [true, false] {
        with("a router of each operator", &|_, of| of.returns() == is);
        with("logits of each size", &|_, of| {
            (of.types().logits == Dtype::Fp32) == is
        });
        with("a bias or none", &|router, _| router.score_bias == is);
        with("groups or none", &|router, _| {
            router.restricts().is_some() == is
        });
        with("weights with a sum of 1 or another", &|router, _| {
            router.renormalise == is
        });
        with("experts that fill the last lanes or not", &|_, of| {
            of.shape.experts.is_multiple_of(32) == is
        });
    }
}
