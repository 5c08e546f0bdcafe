//! What there is to say of a plan of `combine`.

use super::About;
use mkernel_spec::KernelPlan;
use mkernel_spec::plan::CombinePlan;

pub(super) fn about(plan: &KernelPlan, op_plan: &CombinePlan) -> About {
    About {
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
        "C = sums of what {} of {} experts made of each token, by gates, up to {} tokens [{}] on each of {}, bf16",
        shape.top_k,
        shape.experts,
        shape.max_tokens,
        shape.hidden,
        super::ranks_on(plan.spec.topology()),
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
        "by all CTAs, in {} parts with a flag each; if experts are chosen evenly, {:.0} rows of {} choices",
        op_plan.parts(),
        routing.sent_tokens,
        op_plan.choices(),
    )];
    if let Some(internode) = &op_plan.internode {
        lines.push(format!(
            "a row once per token and node, {} in a put; if chosen evenly, {:.0} of {} tokens times nodes",
            internode.chunk_tokens,
            routing.put_tokens,
            op_plan.shape.max_tokens * u64::from(topology.peers()),
        ));
    }
    lines
}
