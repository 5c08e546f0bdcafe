//! Describes the plan of a collective.

use super::description::{Description, ranks_on};
use mkernel_spec::plan::CollectivePlan;
use mkernel_spec::{CollectiveOp, KernelPlan, Protocol};

pub(super) fn describe(plan: &KernelPlan, body: &CollectivePlan) -> Description {
    Description {
        computes: computes(plan, body),
        summary: format!("{} CTAs of {} threads", plan.grid_ctas, plan.threads),
        sections: vec![("transfer", transfer(plan, body))],
        shared: "nothing".to_owned(),
    }
}

fn computes(plan: &KernelPlan, body: &CollectivePlan) -> String {
    let shape = body.shape;
    let (formula, whose) = match body.config.op {
        CollectiveOp::AllReduce => ("Σ_r X_r", " on every rank"),
        CollectiveOp::AllGather => ("rows of all ranks", " on every rank"),
        CollectiveOp::ReduceScatter => ("Σ_r X_r", ", rank r keeps rows r"),
    };
    format!(
        "Y = {formula} [{}, {}]{whose}, {}, {}",
        shape.m,
        shape.n,
        ranks_on(plan.spec.topology()),
        body.config.dtype
    )
}

fn transfer(plan: &KernelPlan, body: &CollectivePlan) -> Vec<String> {
    if plan.spec.world() == 1 {
        return vec!["none: one rank".to_owned()];
    }
    vec![match (body.protocol, body.shots) {
        (Protocol::Ll, 1) => "packets that carry flags; every rank adds up everything".to_owned(),
        (Protocol::Ll, 2) => {
            "packets that carry flags; each rank adds up its part and sends it to all".to_owned()
        }
        (Protocol::Ll, _) => "packets that carry flags".to_owned(),
        (Protocol::Simple, _) => format!(
            "chunks of {} bytes with a flag each, {} per rank",
            body.chunk_vecs * 16,
            body.shard_chunks()
        ),
    }]
}
