//! Describes the plan of `combine`.

use super::description::{Description, ranks_on};
use mkernel_spec::KernelPlan;
use mkernel_spec::plan::CombinePlan;

pub(super) fn describe(plan: &KernelPlan, body: &CombinePlan) -> Description {
    Description {
        computes: computes(plan, body),
        summary: format!(
            "{} CTAs, {} stages of {} bytes",
            plan.grid_ctas, body.stages, body.part_bytes
        ),
        sections: vec![("transfer", transfer(plan, body))],
        shared: format!("{} stages", body.stages),
    }
}

fn computes(plan: &KernelPlan, body: &CombinePlan) -> String {
    let shape = body.shape;
    format!(
        "C = weighted sums of the outputs of {} of {} experts for each token, up to {} tokens [{}] on each of {}, bf16",
        shape.top_k,
        shape.experts,
        shape.max_tokens,
        shape.hidden,
        ranks_on(plan.spec.topology()),
    )
}

fn transfer(plan: &KernelPlan, body: &CombinePlan) -> Vec<String> {
    let world = plan.spec.world();
    if world == 1 {
        return vec!["none: one rank".to_owned()];
    }
    let topology = plan.spec.topology();
    let spread = body.spread(topology);
    let mut lines = vec![format!(
        "by all CTAs, in {} parts with a flag each; if experts are chosen evenly, {:.0} rows for {} entries",
        body.parts(),
        spread.sent_tokens,
        body.choices(),
    )];
    if let Some(lists) = &body.lists {
        lines.push(format!(
            "each token's row once per node, {} in a put; if experts are chosen evenly, {:.0} of {} rows",
            lists.chunk_tokens,
            spread.put_tokens,
            body.shape.max_tokens * u64::from(topology.peers()),
        ));
    }
    lines
}
