//! Where things lie in the workspace of a GEMM operator.

use super::super::Gemm;
use crate::render::constants::Constants;
use mkernel_spec::Transfer;
use mkernel_spec::abi;

/// Offsets of what the kernel uses.
pub(super) fn constants(gemm: Gemm<'_>, c: &mut Constants) {
    let Gemm { plan, body } = gemm;
    let mut u64 = |name, region, note| {
        c.u64(name, plan.workspace.offset_of(region).unwrap_or(0), note);
    };
    let exchanges = body.chunks.is_some();
    if body.order.pace_steps > 0 {
        let note = "counts the CTAs that have come so far, over all calls";
        u64("kPace", "pace", note);
    }
    if body.order.tail_parts > 1 {
        u64(
            "kTailFlags",
            "split_ready",
            "one per shared tile and math warp",
        );
        u64("kTailSums", "split_sums", "fp32");
    }
    if exchanges {
        u64("kFlags", "chunk_ready", "");
    }
    if body.transfer == Some(Transfer::SmPush) {
        u64(
            "kGathered",
            "gathered",
            "two buffers, by parity of the epoch",
        );
    }
    let shots = body.reduction.as_ref().map_or(0, |r| r.shots);
    if shots == 1 {
        u64(
            "kSlots",
            "packets",
            "by parity of the epoch, source and tile",
        );
    }
    if shots == 2 {
        u64(
            "kPartialFlags",
            "partial_ready",
            "one per source rank and tile",
        );
        u64(
            "kPartials",
            "partials",
            "by parity of the epoch, source and tile",
        );
    }
    if plan.workspace.offset_of("results").is_some() {
        u64("kResultFlags", "result_ready", "one per tile");
        u64("kResults", "results", "by parity of the epoch and tile");
    }
    if plan.workspace.offset_of("begun").is_some() {
        u64("kBegun", "begun", "one flag per rank that has rows");
    }
    if shots == 2 && plan.network.is_some() {
        u64("kPutFlags", "put_ready", "one per put");
        u64("kSumsOut", "sums_out", "by parity of the epoch and tile");
        u64(
            "kSumsIn",
            "sums_in",
            "by parity of the epoch, peer and tile",
        );
    }
    if plan.network.is_some() {
        u64("kArrived", "arrived", "counts of puts by channel and peer");
    }
    if exchanges
        || shots == 2
        || plan.workspace.offset_of("begun").is_some()
        || body.order.tail_parts > 1
    {
        c.u64("kFlagStride", abi::FLAG_STRIDE_BYTES, "a line of L2 each");
    }
}
