//! Describes the plan of an attention operator.

use super::description::{Description, ranks_on};
use crate::cli::format::bytes;
use mkernel_spec::Topology;
use mkernel_spec::plan::{AttentionPlan, Body, TILE_ROWS};

pub(super) fn describe(body: &Body, op_plan: &AttentionPlan, topology: Topology) -> Description {
    Description {
        computes: computes(op_plan, topology),
        summary: format!(
            "tiles of {TILE_ROWS} queries and {TILE_ROWS} keys, {} stages, {} CTAs",
            op_plan.stages, body.launch.grid_ctas
        ),
        sections: vec![
            ("tiles", tiles(body, op_plan)),
            ("transfer", transfer(body, op_plan, topology)),
        ],
        shared: format!("{} stages of K and V", op_plan.stages),
    }
}

fn computes(op_plan: &AttentionPlan, topology: Topology) -> String {
    let shape = op_plan.shape;
    let mask = if op_plan.config.causal {
        ", each row over itself and earlier rows"
    } else {
        ""
    };
    let scores = match op_plan.config.scale.fixed() {
        Some(scale) => format!("{scale} Q Kᵀ"),
        None => "Q Kᵀ / √D".to_owned(),
    };
    let up_to = if op_plan.takes_rows() { "up to " } else { "" };
    let sequences = match op_plan.config.packed {
        true => format!("up to {} packed sequences of", shape.batch),
        false => format!("B {},", shape.batch),
    };
    let cached = op_plan.config.cached.map_or(String::new(), |rows| {
        format!(" behind up to {rows} cached on each rank")
    });
    let mut layout = op_plan.config.layout.name().to_uppercase();
    if op_plan.config.packed {
        layout.retain(|dim| dim != 'B');
    }
    format!(
        "O = softmax({scores}) V{mask}, {sequences} S {up_to}{}{cached}, H {}, {} of K and V, D {}, {}, {} shards, as [{}], {}{}",
        shape.seq,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        ranks_on(topology),
        op_plan.config.placement,
        layout
            .split("")
            .filter(|c| !c.is_empty())
            .collect::<Vec<_>>()
            .join(","),
        op_plan.config.dtype,
        if op_plan.config.lse { ", LSE fp32" } else { "" },
    )
}

fn tiles(body: &Body, op_plan: &AttentionPlan) -> Vec<String> {
    let heads = op_plan.heads();
    let ctas = body.launch.grid_ctas;
    vec![
        format!(
            "{} per head x {heads} heads = {} tiles, {:.2} waves of {} CTAs",
            op_plan.row_tiles,
            op_plan.tiles,
            f64::from(op_plan.tiles) / f64::from(ctas),
            ctas,
        ),
        format!("{} heads take turns, tile by tile", op_plan.group_heads),
    ]
}

fn transfer(body: &Body, op_plan: &AttentionPlan, topology: Topology) -> Vec<String> {
    let world = topology.world();
    if world == 1 {
        return vec!["none: one rank".to_owned()];
    }
    let slots = match op_plan.is_ring() {
        true => format!(
            "{} of {} heads of K and V at a time",
            op_plan.kv_slots,
            op_plan.kv_heads()
        ),
        false if op_plan.buffers > 1 => "all heads of K and V of two calls".to_owned(),
        false => "all heads of K and V".to_owned(),
    };
    let pushers = match &body.network {
        Some(_) => "CTAs, one warp of each, which also forwards",
        None => "CTAs before they compute",
    };
    vec![
        format!(
            "sm_push by {} {pushers}, {TILE_ROWS} keys under one flag, head by head",
            op_plan.push_ctas
        ),
        format!(
            "slots for {slots}: {} on each rank",
            bytes(op_plan.slot_bytes(world))
        ),
    ]
}
