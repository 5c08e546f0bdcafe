//! Describes the plan of `dispatch_gemm`.

use super::description::{Description, acknowledged, ranks_on};
use mkernel_spec::plan::DispatchPlan;
use mkernel_spec::{BLayout, KernelPlan};

pub(super) fn describe(plan: &KernelPlan, op_plan: &DispatchPlan) -> Description {
    Description {
        computes: computes(plan, op_plan),
        summary: format!(
            "tile {}x{}, {} stages, {} CTAs of which {} communicate",
            op_plan.tile.m, op_plan.tile.n, op_plan.stages, plan.grid_ctas, op_plan.comm_ctas
        ),
        sections: vec![
            ("tiles", tiles(plan, op_plan)),
            ("transfer", transfer(plan, op_plan)),
        ],
        shared: format!("{} stages", op_plan.stages),
    }
}

fn computes(plan: &KernelPlan, op_plan: &DispatchPlan) -> String {
    let shape = op_plan.shape;
    let weight = match (op_plan.config.swiglu, op_plan.config.b_layout) {
        (false, _) => "tokens · W",
        (true, _) => "silu(tokens · gate) · (tokens · up)",
    };
    let layout = match op_plan.config.b_layout {
        BLayout::Kn => "[H, columns]",
        BLayout::Nk => "[columns, H]",
    };
    format!(
        "C = {weight} of each expert, {} experts, {} per token, up to {} tokens [{}] on each of {}, C [rows, {}], weights {layout}, {}",
        shape.experts,
        shape.top_k,
        shape.max_tokens,
        shape.hidden,
        ranks_on(plan.spec.topology()),
        shape.intermediate,
        op_plan.types().tokens,
    )
}

fn tiles(plan: &KernelPlan, op_plan: &DispatchPlan) -> Vec<String> {
    let world = plan.spec.world();
    let routing = op_plan.expected_routing(plan.spec.topology());
    vec![
        format!(
            "{} x {} (columns of the product), {} of C; {} experts per rank",
            op_plan.tile.m,
            op_plan.tile.n,
            op_plan.tile_cols(),
            op_plan.local_experts(world)
        ),
        format!(
            "if experts are chosen evenly, {:.0} rows per rank, {:.1} of each expert; at most {}",
            routing.rows, routing.expert_rows, op_plan.max_rows
        ),
    ]
}

fn transfer(plan: &KernelPlan, op_plan: &DispatchPlan) -> Vec<String> {
    let world = plan.spec.world();
    if world == 1 {
        return vec!["none: one rank".to_owned()];
    }
    let topology = plan.spec.topology();
    let (tokens, routing) = (op_plan.shape.max_tokens, op_plan.expected_routing(topology));
    let mates = topology.nodes * (topology.local_world - 1);
    let mut lines = vec![format!(
        "sm_push by {} CTAs, {} tokens under one flag; if experts are chosen evenly, {:.0} of {} pairs of a token and a rank",
        op_plan.comm_ctas,
        op_plan.block_tokens,
        routing.sent_tokens,
        tokens * u64::from(mates),
    )];
    if let Some(internode) = &op_plan.internode {
        lines.push(format!(
            "each token once per node, {} in a put, forwarded to its ranks; if experts are chosen evenly, {:.0} of {} pairs of a token and a node",
            internode.chunks.chunk_tokens,
            routing.put_tokens,
            tokens * u64::from(topology.peers()),
        ));
        lines.extend(acknowledged(&internode.chunks, tokens));
    }
    lines
}
