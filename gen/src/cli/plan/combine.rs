//! What there is to say of a plan of `combine`.

use super::About;
use mkernel_spec::KernelPlan;
use mkernel_spec::plan::CombinePlan;

pub(super) fn about(plan: &KernelPlan, body: &CombinePlan) -> About {
    About {
        computes: computes(plan, body),
        summary: format!(
            "{} CTAs, {} tokens under one flag",
            plan.grid_ctas, body.block_tokens
        ),
        sections: vec![("transfer", transfer(plan, body))],
        shared: "a word by which a CTA agrees".to_owned(),
    }
}

fn computes(plan: &KernelPlan, body: &CombinePlan) -> String {
    let shape = body.shape;
    format!(
        "C = sums of what {} of {} experts made of each token, by gates, up to {} tokens [{}] on each of {}, bf16",
        shape.top_k,
        shape.experts,
        shape.max_tokens,
        shape.hidden,
        super::ranks(plan.spec.world()),
    )
}

fn transfer(plan: &KernelPlan, body: &CombinePlan) -> Vec<String> {
    let world = plan.spec.world();
    if world == 1 {
        return vec!["none: one rank".to_owned()];
    }
    vec![format!(
        "by {} warps of each CTA, {} tokens under one flag; if experts are chosen evenly, {:.0} rows of {} choices",
        body.send_warps,
        body.block_tokens,
        body.spread(world).sent_tokens,
        body.choices(),
    )]
}
