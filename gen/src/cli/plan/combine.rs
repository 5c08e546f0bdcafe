//! Describes the plan of `combine`.

use super::description::{Description, acknowledged, ranks_on};
use mkernel_spec::KernelPlan;
use mkernel_spec::plan::{CombinePlan, SumPipeline};

pub(super) fn describe(plan: &KernelPlan, op_plan: &CombinePlan) -> Description {
    Description {
        computes: computes(plan, op_plan),
        summary: match op_plan.pipeline {
            Some(SumPipeline { part_bytes, stages }) => {
                format!(
                    "{} CTAs, {stages} stages of {part_bytes} bytes",
                    plan.grid_ctas
                )
            }
            None => format!("{} CTAs", plan.grid_ctas),
        },
        sections: vec![("transfer", transfer(plan, op_plan))],
        shared: match op_plan.pipeline {
            Some(pipeline) => format!("{} stages", pipeline.stages),
            None => "nothing".to_owned(),
        },
    }
}

fn computes(plan: &KernelPlan, op_plan: &CombinePlan) -> String {
    let shape = op_plan.shape;
    format!(
        "C = weighted sums of the outputs of {} of {} experts for each token, up to {} tokens [{}] on each of {}, {}",
        shape.top_k,
        shape.experts,
        shape.max_tokens,
        shape.hidden,
        ranks_on(plan.spec.topology()),
        op_plan.config.dtype,
    )
}

fn transfer(plan: &KernelPlan, op_plan: &CombinePlan) -> Vec<String> {
    let world = plan.spec.world();
    if world == 1 {
        return vec!["none: one rank".to_owned()];
    }
    let topology = plan.spec.topology();
    let routing = op_plan.expected_routing(topology);
    let rows = format!(
        "if experts are chosen evenly, {:.0} rows for {} entries",
        routing.sent_tokens,
        op_plan.choices()
    );
    let mut lines = Vec::new();
    if op_plan.low_latency_tokens > 0 {
        lines.push(format!(
            "by all CTAs, in packets for ranks with at most {} tokens; {rows}",
            op_plan.low_latency_tokens
        ));
    }
    if op_plan.pipeline.is_some() {
        lines.push(format!(
            "by all CTAs, in {} parts with a flag each; {rows}",
            op_plan.parts()
        ));
    }
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
