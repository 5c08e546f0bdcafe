//! Describes the plan of an attention operator.

use super::description::{Description, ranks_on};
use crate::cli::format::bytes;
use mkernel_spec::KernelPlan;
use mkernel_spec::plan::{AttentionPlan, TILE_ROWS};

pub(super) fn describe(plan: &KernelPlan, body: &AttentionPlan) -> Description {
    Description {
        computes: computes(plan, body),
        summary: format!(
            "tiles of {TILE_ROWS} queries and {TILE_ROWS} keys, {} stages, {} CTAs",
            body.stages, plan.grid_ctas
        ),
        sections: vec![
            ("tiles", tiles(plan, body)),
            ("transfer", transfer(plan, body)),
        ],
        shared: format!("{} stages of K and V", body.stages),
    }
}

fn computes(plan: &KernelPlan, body: &AttentionPlan) -> String {
    let shape = body.shape;
    let mask = if body.config.causal {
        ", each row over itself and earlier ones"
    } else {
        ""
    };
    let scores = match body.config.scale.fixed() {
        Some(scale) => format!("{scale} Q Kᵀ"),
        None => "Q Kᵀ / √D".to_owned(),
    };
    let layout = body.config.layout.name().to_uppercase();
    format!(
        "O = softmax({scores}) V{mask}, B {}, S {}, H {}, {} of K and V, D {}, {}, {} shards, as [{}], bf16, LSE fp32",
        shape.batch,
        shape.seq,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        ranks_on(plan.spec.topology()),
        body.config.placement,
        layout
            .split("")
            .filter(|c| !c.is_empty())
            .collect::<Vec<_>>()
            .join(","),
    )
}

fn tiles(plan: &KernelPlan, body: &AttentionPlan) -> Vec<String> {
    let heads = body.shape.batch * body.shape.heads;
    let ctas = plan.grid_ctas;
    vec![
        format!(
            "{} per head x {heads} heads = {} tiles, {:.2} waves of {} CTAs",
            body.row_tiles,
            body.tiles,
            f64::from(body.tiles) / f64::from(ctas),
            ctas,
        ),
        format!("{} heads take turns, tile by tile", body.group_heads),
    ]
}

fn transfer(plan: &KernelPlan, body: &AttentionPlan) -> Vec<String> {
    let world = plan.spec.world();
    if world == 1 {
        return vec!["none: one rank".to_owned()];
    }
    let slots = match body.is_ring() {
        true => format!(
            "{} of {} heads of K and V at a time",
            body.kv_slots,
            body.kv_heads()
        ),
        false if body.buffers > 1 => "all heads of K and V of two calls".to_owned(),
        false => "all heads of K and V".to_owned(),
    };
    let pushers = match &plan.network {
        Some(_) => "CTAs, one warp of each, which also forwards",
        None => "CTAs before they compute",
    };
    vec![
        format!(
            "sm_push by {} {pushers}, {TILE_ROWS} keys under one flag, head by head",
            body.push_ctas
        ),
        format!(
            "slots for {slots}: {} on each rank",
            bytes(body.slot_bytes(world))
        ),
    ]
}
