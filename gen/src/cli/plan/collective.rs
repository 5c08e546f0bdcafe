//! Describes the plan of a collective.

use super::description::{Description, ranks_on};
use mkernel_spec::plan::CollectivePlan;
use mkernel_spec::{CollectiveOp, KernelPlan, Norm, Protocol};

pub(super) fn describe(plan: &KernelPlan, op_plan: &CollectivePlan) -> Description {
    Description {
        computes: computes(plan, op_plan),
        summary: format!(
            "{}{} CTAs of {} threads",
            travel(plan, op_plan),
            plan.grid_ctas,
            plan.threads
        ),
        sections: sections(plan, op_plan),
        shared: "nothing".to_owned(),
    }
}

fn sections(plan: &KernelPlan, op_plan: &CollectivePlan) -> Vec<(&'static str, Vec<String>)> {
    let transfer = ("transfer", transfer(plan, op_plan));
    let norm = op_plan.norm.map(|norm| {
        let warps = match norm.warps {
            1 => "a warp for each row".to_owned(),
            warps => format!("{warps} warps for each row, which send each other sums of squares"),
        };
        ("norm", vec![warps])
    });
    [transfer].into_iter().chain(norm).collect()
}

fn computes(plan: &KernelPlan, op_plan: &CollectivePlan) -> String {
    let shape = op_plan.shape;
    let (formula, whose) = match op_plan.config.op {
        CollectiveOp::AllReduce => ("Σ_r X_r", " on every rank"),
        CollectiveOp::AllGather => ("rows of all ranks", " on every rank"),
        CollectiveOp::ReduceScatter => ("Σ_r X_r", ", rank r keeps its rows"),
    };
    let epilogue = op_plan.config.epilogue;
    let formula = match epilogue.norm {
        Norm::None => formula.to_owned(),
        norm => format!("{norm}({})", epilogue.addends(formula)),
    };
    format!(
        "Y = {formula} [{}, {}]{whose}, {}, {}",
        shape.m,
        shape.n,
        ranks_on(plan.spec.topology()),
        op_plan.config.dtype
    )
}

/// How data travels, in a few words.
fn travel(plan: &KernelPlan, op_plan: &CollectivePlan) -> String {
    match (op_plan.protocol, op_plan.shots) {
        _ if plan.spec.world() == 1 => String::new(),
        (Protocol::Ll, 1) => "packets, one shot, ".to_owned(),
        (Protocol::Ll, 2) => "packets, two shots, ".to_owned(),
        (Protocol::Ll, _) => "packets, ".to_owned(),
        (Protocol::Simple, _) => format!("chunks of {} bytes, ", op_plan.chunk_vecs * 16),
    }
}

fn transfer(plan: &KernelPlan, op_plan: &CollectivePlan) -> Vec<String> {
    if plan.spec.world() == 1 {
        return vec!["none: one rank".to_owned()];
    }
    vec![match (op_plan.protocol, op_plan.shots) {
        (Protocol::Ll, 1) => "Lamport packets; every rank adds up everything".to_owned(),
        (Protocol::Ll, 2) => {
            "Lamport packets; each rank adds up its part and sends it to all".to_owned()
        }
        (Protocol::Ll, _) if op_plan.config.op.reduces() => "Lamport packets".to_owned(),
        (Protocol::Ll, _) => "packets that carry flags".to_owned(),
        (Protocol::Simple, _) => format!(
            "chunks of {} bytes with a flag each, {} per rank",
            op_plan.chunk_vecs * 16,
            op_plan.shard_chunks()
        ),
    }]
}
