//! Describes the plan of an operator with products of experts.

use super::description::{Description, acknowledged, ranks_on};
use mkernel_spec::plan::{Body, DispatchPlan};
use mkernel_spec::{BLayout, DispatchOp, Topology};

pub(super) fn describe(body: &Body, op_plan: &DispatchPlan, topology: Topology) -> Description {
    Description {
        computes: computes(op_plan, topology),
        summary: format!(
            "tile {}x{}, {} stages, {} CTAs{}",
            op_plan.tile.m,
            op_plan.tile.n,
            op_plan.stages,
            body.launch.grid_ctas,
            match op_plan.dispatches() {
                true => format!(" of which {} communicate", op_plan.comm_ctas),
                false => String::new(),
            }
        ),
        sections: vec![
            ("tiles", tiles(op_plan, topology)),
            ("transfer", transfer(op_plan, topology)),
        ],
        shared: format!("{} stages", op_plan.stages),
    }
}

fn computes(op_plan: &DispatchPlan, topology: Topology) -> String {
    let product = product(op_plan, topology);
    let router = &op_plan.config.router;
    match router.chooses() {
        true => format!(
            "{product}, experts by {} of logits in {}",
            router.scores,
            op_plan.types().logits
        ),
        false => product,
    }
}

fn product(op_plan: &DispatchPlan, topology: Topology) -> String {
    let (shape, swiglu) = (op_plan.shape, op_plan.config.swiglu);
    let weight = match swiglu {
        false => "tokens · W",
        true => "silu(tokens · gate) · (tokens · up)",
    };
    let (computes, rows, k_and_cols) = match op_plan.config.op {
        DispatchOp::DispatchGemm => (
            format!("C = {weight} of each expert"),
            "C [rows, ",
            ["H", "columns"],
        ),
        DispatchOp::MoeLayer => (
            format!("C = Σ w · ({weight}) · down over the experts of each token"),
            "hidden rows [",
            ["H", "columns"],
        ),
        DispatchOp::GemmCombine => (
            "C = Σ w · (A · B) over the rows of each token".to_owned(),
            "A [rows, ",
            ["columns of A", "H"],
        ),
    };
    let [k, cols] = k_and_cols;
    let layout = match op_plan.config.b_layout {
        BLayout::Kn => format!("[{k}, {cols}]"),
        BLayout::Nk => format!("[{cols}, {k}]"),
    };
    format!(
        "{computes}, {} experts, {} per token, up to {} tokens [{}] on each of {}, {rows}{}], weights {layout}, {}",
        shape.experts,
        shape.top_k,
        shape.max_tokens,
        shape.hidden,
        ranks_on(topology),
        shape.intermediate,
        op_plan.types().tokens,
    )
}

fn tiles(op_plan: &DispatchPlan, topology: Topology) -> Vec<String> {
    let world = topology.world();
    let routing = op_plan.expected_routing(topology);
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

fn transfer(op_plan: &DispatchPlan, topology: Topology) -> Vec<String> {
    let world = topology.world();
    if world == 1 {
        return vec!["none: one rank".to_owned()];
    }
    let (tokens, routing) = (op_plan.shape.max_tokens, op_plan.expected_routing(topology));
    if !op_plan.dispatches() {
        return vec![format!(
            "each result goes to its token from the registers of the product; if experts are chosen evenly, {:.0} of {:.0} rows leave the rank",
            routing.rows * f64::from(world - 1) / f64::from(world),
            routing.rows,
        )];
    }
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
