//! Describes the plan of `combine`.

use super::description::{Description, acknowledged, ranks_on};
use mkernel_spec::Topology;
use mkernel_spec::plan::{Body, CombinePlan, SumPipeline};

pub(super) fn describe(body: &Body, op_plan: &CombinePlan, topology: Topology) -> Description {
    Description {
        computes: computes(op_plan, topology),
        summary: match op_plan.pipeline {
            Some(SumPipeline { part_bytes, stages }) => {
                format!(
                    "{} CTAs, {stages} stages of {part_bytes} bytes",
                    body.launch.grid_ctas
                )
            }
            None => format!("{} CTAs", body.launch.grid_ctas),
        },
        sections: vec![("transfer", transfer(op_plan, topology))],
        shared: match op_plan.pipeline {
            Some(pipeline) => format!("{} stages", pipeline.stages),
            None => "nothing".to_owned(),
        },
    }
}

fn computes(op_plan: &CombinePlan, topology: Topology) -> String {
    let shape = op_plan.shape;
    format!(
        "C = weighted sums of the outputs of {} of {} experts for each token, up to {} tokens [{}] on each of {}, {}",
        shape.top_k,
        shape.experts,
        shape.max_tokens,
        shape.hidden,
        ranks_on(topology),
        op_plan.config.dtype,
    )
}

fn transfer(op_plan: &CombinePlan, topology: Topology) -> Vec<String> {
    let world = topology.world();
    if world == 1 {
        return vec!["none: one rank".to_owned()];
    }
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
