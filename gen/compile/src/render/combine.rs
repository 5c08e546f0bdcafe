//! What templates know of `combine`.

use super::constants::{Constant, Constants};
use super::{Parts, Variables, plural};
use mkernel_spec::plan::{CombinePlan, HEADER_WORDS};
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
            "arrive  one row per token and rank, {} tokens under one flag",
            body.block_tokens
        )],
    };
    Parts {
        title: "C = weighted sums of what experts made of tokens, one launch",
        headers: vec!["memory", "mma", "watch"],
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
    c.u32("kHidden", shape.hidden, "columns");
    c.u32(
        "kBlockTokens",
        body.block_tokens,
        "that a warp takes at a time",
    );
    if world == 1 {
        return c.into_list();
    }
    c.u32("kBlocks", body.blocks(), "of a rank");
    c.u32(
        "kSendWarps",
        body.send_warps,
        "of a CTA; the others add up what comes",
    );
    c.u32(
        "kHeaderWords",
        HEADER_WORDS,
        "that a rank tells beside its choices",
    );
    c.section("workspace, bytes");
    let offset = |region| plan.workspace.offset_of(region).unwrap_or(0);
    c.u64("kFault", offset("fault"), "epoch of the last fault");
    c.u64("kTold", offset("told"), "one flag per rank");
    c.u64(
        "kHeaders",
        offset("headers"),
        "by parity of the epoch and source",
    );
    c.u64("kChoices", offset("choices"), "by source");
    c.u64("kFlags", offset("flags"), "one per rank and block");
    c.u64("kFlagStride", abi::FLAG_STRIDE_BYTES, "a line of L2 each");
    c.u64("kPartials", offset("partials"), "rows by rank and token");
    c.into_list()
}
