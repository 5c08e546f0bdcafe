//! Describes the plan of `dispatch_gemm`.

use super::description::{Description, ranks_on};
use mkernel_spec::plan::DispatchPlan;
use mkernel_spec::{BLayout, KernelPlan};

pub(super) fn describe(plan: &KernelPlan, body: &DispatchPlan) -> Description {
    Description {
        computes: computes(plan, body),
        summary: format!(
            "tile {}x{}, {} stages, {} CTAs of which {} communicate",
            body.tile.m, body.tile.n, body.stages, plan.grid_ctas, body.comm_ctas
        ),
        sections: vec![
            ("tiles", tiles(plan, body)),
            ("transfer", transfer(plan, body)),
        ],
        shared: format!("{} stages", body.stages),
    }
}

fn computes(plan: &KernelPlan, body: &DispatchPlan) -> String {
    let shape = body.shape;
    let weight = match (body.config.swiglu, body.config.b_layout) {
        (false, _) => "tokens · W",
        (true, _) => "silu(tokens · gate) · (tokens · up)",
    };
    let layout = match body.config.b_layout {
        BLayout::Kn => "[H, columns]",
        BLayout::Nk => "[columns, H]",
    };
    format!(
        "C = {weight} of each expert, {} experts, {} per token, up to {} tokens [{}] on each of {}, C [rows, {}], weights {layout}, bf16",
        shape.experts,
        shape.top_k,
        shape.max_tokens,
        shape.hidden,
        ranks_on(plan.spec.topology()),
        shape.intermediate,
    )
}

fn tiles(plan: &KernelPlan, body: &DispatchPlan) -> Vec<String> {
    let world = plan.spec.world();
    let spread = body.spread(plan.spec.topology());
    vec![
        format!(
            "{} x {} (columns of the product), {} of C; {} experts per rank",
            body.tile.m,
            body.tile.n,
            body.tile_cols(),
            body.local_experts(world)
        ),
        format!(
            "if experts are chosen evenly, {:.0} rows per rank, {:.1} of each expert; at most {}",
            spread.rows, spread.expert_rows, body.max_rows
        ),
    ]
}

fn transfer(plan: &KernelPlan, body: &DispatchPlan) -> Vec<String> {
    let world = plan.spec.world();
    if world == 1 {
        return vec!["none: one rank".to_owned()];
    }
    let topology = plan.spec.topology();
    let (tokens, spread) = (body.shape.max_tokens, body.spread(topology));
    let mates = topology.nodes * (topology.local_world - 1);
    let mut lines = vec![format!(
        "sm_push by {} CTAs, {} tokens under one flag; if experts are chosen evenly, {:.0} of {} pairs of a token and a rank",
        body.comm_ctas,
        body.block_tokens,
        spread.sent_tokens,
        tokens * u64::from(mates),
    )];
    if let Some(across) = &body.across {
        lines.push(format!(
            "each token once per node, {} in a put, forwarded to its ranks; if experts are chosen evenly, {:.0} of {} pairs of a token and a node",
            across.chunk_tokens,
            spread.put_tokens,
            tokens * u64::from(topology.peers()),
        ));
    }
    lines
}
