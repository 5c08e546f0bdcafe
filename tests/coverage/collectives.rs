//! Golden configurations of collectives with rows at run time, and of norms.

use crate::some;
use mkernel_spec::plan::{CollectivePlan, OpPlan, SCALE_BLOCK};
use mkernel_spec::{CollectiveOp, Protocol, Scales};
use mkernel_testing::golden::Golden;

/// Bodies of one kernel differ in their protocols, here with a norm.
#[test]
fn goldens_cover_buckets_of_collectives() {
    let goldens = Golden::all();
    let bodies = |golden: &Golden| -> Vec<String> {
        let lines = golden.source.text.lines();
        let of_line = |line: &str| {
            let kernel = line.strip_prefix("using Kernel = mk::collective::")?;
            Some(kernel.split('<').next()?.to_owned())
        };
        lines.filter_map(of_line).collect()
    };
    let wanted = ["LlAllReduceOneShot", "LlAllReduceTwoShots", "AllReduce"];
    some(&goldens, &format!("{wanted:?}"), |golden| {
        bodies(golden) == wanted && golden.source.text.contains("kLaneVecs")
    });
}

/// Scales travel with rows of each operator that moves rows, in each protocol and across nodes.
#[test]
fn goldens_cover_scales_of_moved_rows() {
    let goldens = Golden::all();
    let scaled = |golden: &Golden| match &golden.plan.body().op_plan {
        OpPlan::Collective(op_plan) if op_plan.config.scales != Scales::None => {
            Some(op_plan.clone())
        }
        _ => None,
    };
    let moves = CollectiveOp::ALL.into_iter().filter(|op| !op.reduces());
    for op in moves {
        some(&goldens, &format!("{op} with scales"), |golden| {
            scaled(golden).is_some_and(|plan| plan.config.op == op)
        });
    }
    for protocol in Protocol::ALL {
        some(&goldens, &format!("scales by {protocol}"), |golden| {
            scaled(golden).is_some_and(|plan| plan.protocol == protocol)
        });
    }
    for scales in [Scales::Row, Scales::Block] {
        some(&goldens, &format!("moved scales of {scales}"), |golden| {
            scaled(golden).is_some_and(|plan| plan.config.scales == scales)
        });
    }
    some(&goldens, "scales across nodes", |golden| {
        scaled(golden).is_some() && golden.plan.body().network.is_some()
    });
    some(&goldens, "scales with rows at run time", |golden| {
        scaled(golden).is_some_and(|plan| plan.takes_rows())
    });
}

#[test]
fn goldens_cover_norms_of_collectives() {
    let goldens = Golden::all();
    let some_of = |what: &str, is: fn(&Golden, &CollectivePlan, u32) -> bool| {
        some(&goldens, what, |golden| match &golden.plan.body().op_plan {
            OpPlan::Collective(op_plan) => {
                let warps = op_plan.norm.map(|norm| norm.warps);
                warps.is_some_and(|warps| is(golden, op_plan, warps))
            }
            _ => false,
        });
    };
    some_of("a warp for a row in packets", |_, plan, warps| {
        plan.protocol == Protocol::Ll && warps == 1
    });
    some_of("warps that share a row, in one shot", |_, plan, warps| {
        plan.shots == 1 && warps > 1
    });
    some_of("warps that share a row, in two shots", |_, plan, warps| {
        plan.shots == 2 && warps > 1
    });
    some_of("chunks of one node", |g, plan, _| {
        plan.protocol == Protocol::Simple
            && g.plan.spec.world() > 1
            && g.plan.body().network.is_none()
    });
    some_of("one rank", |g, _, _| g.plan.spec.world() == 1);
    some_of("several nodes", |g, _, _| g.plan.body().network.is_some());
    some_of("rows at run time", |_, plan, _| plan.takes_rows());
    some_of("nothing that is added", |_, plan, _| {
        !plan.config.epilogue.bias && !plan.config.epilogue.residual
    });
    some_of("scales of rows that warps share", |_, plan, _| {
        plan.shares_magnitudes()
    });
    some_of("scales of blocks in packets", |_, plan, _| {
        plan.config.epilogue.result_scales == Scales::Block && plan.protocol == Protocol::Ll
    });
    some_of("scales of rows in chunks", |_, plan, _| {
        plan.config.epilogue.result_scales == Scales::Row && plan.protocol == Protocol::Simple
    });
    some_of(
        "scales of blocks in chunks, the last block shorter",
        |_, plan, _| {
            plan.config.epilogue.result_scales == Scales::Block
                && plan.protocol == Protocol::Simple
                && !plan.shape.n.is_multiple_of(SCALE_BLOCK)
        },
    );
}
