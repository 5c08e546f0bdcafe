//! What templates know of `combine`.

use super::constants::{Constant, Constants};
use super::{Parts, Variables, plural};
use mkernel_spec::plan::{CombinePlan, HEADER_WORDS, OUTS};
use mkernel_spec::{KernelPlan, abi};

/// What is said of such a plan.
pub(super) fn parts<'a>(plan: &'a KernelPlan, body: &'a CombinePlan) -> Parts<'a> {
    let world = plan.spec.world();
    let shape = body.shape;
    let computes = vec![format!(
        "spec    {} of {} experts per token, up to {} tokens of {} on each of {world} rank{}, up to {} rows, bf16",
        shape.top_k,
        shape.experts,
        shape.max_tokens,
        shape.hidden,
        plural(world),
        body.max_rows
    )];
    let exchanges = match world {
        1 => Vec::new(),
        _ => vec![format!(
            "arrive  one row per token and rank, a flag for each of {} part{}",
            body.parts(),
            plural(body.parts() as u32)
        )],
    };
    Parts {
        title: "C = weighted sums of what experts made of tokens, one launch",
        headers: vec!["barrier", "memory", "mma", "ring", "tma", "watch"],
        computes,
        exchanges,
        constants: constants(plan, body),
        variables: Variables::Combine {},
    }
}

fn constants(plan: &KernelPlan, body: &CombinePlan) -> Vec<Constant> {
    let mut c = Constants::default();
    let (world, shape) = (plan.spec.world(), body.shape);
    c.section("ranks and tokens");
    c.u32("kWorld", world, "");
    c.u32("kTopK", shape.top_k, "choices of a token");
    c.u32("kMaxTokens", shape.max_tokens, "of a rank");
    c.u32("kMaxRows", body.max_rows, "of a rank");
    c.u32("kRowBytes", body.row_bytes(), "");
    c.u32("kPartBytes", body.part_bytes, "summed at a time");
    c.u32("kParts", body.parts(), "of a row");
    c.section("shared memory, bytes");
    c.u32(
        "kStages",
        body.stages,
        "of the ring that parts of rows come through",
    );
    c.u32("kOuts", OUTS, "sums that leave");
    for (name, region) in [
        ("kSmemOut", "out"),
        ("kSmemAbout", "about"),
        ("kSmemBarriers", "barriers"),
    ] {
        let region = plan.smem.iter().find(|r| r.name == region);
        c.u32(name, region.map_or(0, |r| r.offset_bytes), "");
    }
    if world == 1 {
        return c.into_list();
    }
    c.section("workspace, bytes");
    let offset = |region| plan.workspace.offset_of(region).unwrap_or(0);
    c.u32(
        "kHeaderWords",
        HEADER_WORDS,
        "that a rank tells beside its choices",
    );
    c.u64("kFault", offset("fault"), "epoch of the last fault");
    c.u64("kTold", offset("told"), "one flag per rank");
    c.u64(
        "kHeaders",
        offset("headers"),
        "by parity of the epoch and source",
    );
    c.u64("kChoices", offset("choices"), "likewise");
    c.u64("kFlags", offset("flags"), "by rank, token and part");
    c.u64("kFlagStride", abi::FLAG_STRIDE_BYTES, "a line of L2 each");
    c.u64("kPartials", offset("partials"), "rows by rank and token");
    c.into_list()
}
