//! Golden configurations of GEMM operators with a norm.

use crate::some;
use mkernel_spec::plan::GemmPlan;
use mkernel_spec::{GemmOp, Scales};
use mkernel_testing::golden::Golden;

#[test]
fn goldens_cover_norms_of_products() {
    let mut goldens = Golden::all();
    let normalises = |gemm: &GemmPlan| gemm.config.epilogue.normalises();
    goldens.retain(|g| g.plan.gemm().is_some_and(normalises));
    let reduction = |g: &Golden| g.gemm().reduction.clone();
    for rows in [true, false] {
        some(&goldens, "a norm of one rank", |g| {
            reduction(g).is_none() && g.plan.max_rows().is_some() == rows
        });
        for op in GemmOp::ALL.into_iter().filter(|op| op.reduces()) {
            some(&goldens, &format!("a norm in two shots of {op}"), |g| {
                g.gemm().config.op == op
                    && reduction(g).is_some_and(|r| r.shots == 2)
                    && g.plan.max_rows().is_some() == rows
            });
        }
    }
    for (scales, shots) in [(Scales::Block, 1), (Scales::Row, 2), (Scales::Block, 2)] {
        some(
            &goldens,
            &format!("{scales} scales in {shots} shots"),
            |g| {
                g.gemm().config.epilogue.result_scales == scales
                    && reduction(g).is_some_and(|r| r.shots == shots)
            },
        );
    }
    for relays in [true, false] {
        some(&goldens, "a norm behind each exchange of one shot", |g| {
            reduction(g).is_some_and(|r| r.shots == 1 && r.results == relays)
        });
    }
}
