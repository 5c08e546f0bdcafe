//! Describes the plan of `combine`.

use super::description::{Description, acknowledged, ranks_on};
use mkernel_spec::KernelPlan;
use mkernel_spec::plan::CombinePlan;

pub(super) fn describe(plan: &KernelPlan, op_plan: &CombinePlan) -> Description {
    Description {
        computes: computes(plan, op_plan),
        summary: format!(
            "{} CTAs, {} stages of {} bytes",
            plan.grid_ctas, op_plan.stages, op_plan.part_bytes
        ),
        sections: vec![("transfer", transfer(plan, op_plan))],
        shared: format!("{} stages", op_plan.stages),
    }
}

fn computes(plan: &KernelPlan, op_plan: &CombinePlan) -> String {
    let shape = op_plan.shape;
    format!(
        "C = weighted sums of the outputs of {} of {} experts for each token, up to {} tokens [{}] on each of {}, bf16",
        shape.top_k,
        shape.experts,
        shape.max_tokens,
        shape.hidden,
        ranks_on(plan.spec.topology()),
    )
}

fn transfer(plan: &KernelPlan, op_plan: &CombinePlan) -> Vec<String> {
    let world = plan.spec.world();
    if world == 1 {
        return vec!["none: one rank".to_owned()];
    }
    let topology = plan.spec.topology();
    let routing = op_plan.expected_routing(topology);
    let mut lines = vec![format!(
        "by all CTAs, in {} parts with a flag each; if experts are chosen evenly, {:.0} rows for {} entries",
        op_plan.parts(),
        routing.sent_tokens,
        op_plan.choices(),
    )];
    if let Some(internode) = &op_plan.internode {
        lines.push(format!(
            "each token's row once per node, {} in a put; if experts are chosen evenly, {:.0} of {} rows",
            internode.chunks.chunk_tokens,
            routing.put_tokens,
            op_plan.shape.max_tokens * u64::from(topology.peers()),
        ));
        lines.extend(acknowledged(&internode.chunks, op_plan.shape.max_tokens));
    }
    lines
}
