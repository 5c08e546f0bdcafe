//! What templates know of `combine`.

use super::constants::{Constant, Constants};
use super::{Parts, Variables, plural, ranks};
use mkernel_spec::plan::{CombinePlan, OUTS, PACKET_HEADER_BYTES};
use mkernel_spec::{KernelPlan, abi};
use serde::Serialize;

/// Variables of the templates of `combine`.
#[derive(Serialize)]
pub(super) struct CombineVariables {
    /// Nodes, and ranks on each.
    nodes: u32,
    local_world: u32,
}

/// What is said of such a plan.
pub(super) fn parts<'a>(plan: &'a KernelPlan, body: &'a CombinePlan) -> Parts {
    let world = plan.spec.world();
    let (shape, topology) = (body.shape, plan.spec.topology());
    let computes = vec![format!(
        "spec    {} of {} experts per token, up to {} tokens of {} on each of {}, up to {} rows, bf16",
        shape.top_k,
        shape.experts,
        shape.max_tokens,
        shape.hidden,
        ranks(topology),
        body.max_rows
    )];
    let mut exchanges = Vec::new();
    if world > 1 {
        exchanges.push(format!(
            "arrive  one row per token and rank, a flag for each of {} part{}",
            body.parts(),
            plural(body.parts() as u32)
        ));
    }
    if let (Some(lists), Some(network)) = (&body.lists, &plan.network) {
        exchanges.push(format!(
            "network one row per token and node, {} in a put; up to {} puts of up to {} bytes to each peer",
            lists.chunk_tokens, network.puts, network.put_bytes
        ));
    }
    let mut headers = vec!["barrier", "memory", "mma", "ring", "tma", "watch"];
    if plan.network.is_some() {
        headers.insert(1, "fabric");
    }
    Parts {
        title: "C = weighted sums of what experts made of tokens, one launch",
        headers,
        computes,
        exchanges,
        constants: constants(plan, body),
        variables: Variables::Combine(CombineVariables {
            nodes: topology.nodes,
            local_world: topology.local_world,
        }),
    }
}

fn constants(plan: &KernelPlan, body: &CombinePlan) -> Vec<Constant> {
    let mut c = Constants::default();
    let (world, shape) = (plan.spec.world(), body.shape);
    c.section("ranks and tokens");
    c.u32("kWorld", world, "");
    if world > 1 {
        c.u32("kLocalWorld", plan.spec.topology().local_world, "of a node");
    }
    if let Some(network) = &plan.network {
        c.u32("kPeers", plan.spec.topology().peers(), "other nodes");
        c.u32("kChannels", network.channels, "to each of them");
        c.u32("kCommCtas", body.comm_ctas(), "only communicate");
    }
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
    c.u64(
        "kTold",
        offset("told"),
        "choices by parity of the epoch and source",
    );
    c.u64("kToldBytes", body.told_bytes(), "of one");
    c.u32("kHeaderBytes", body.header_bytes(), "before them");
    c.u64("kFlags", offset("flags"), "by rank, token and part");
    c.u64("kFlagStride", abi::FLAG_STRIDE_BYTES, "a line of L2 each");
    c.u64("kPartials", offset("partials"), "rows by rank and token");
    if let Some(lists) = &body.lists {
        c.u32("kChunkTokens", lists.chunk_tokens, "of a put");
        for (name, region, note) in [
            ("kArrived", "arrived", "counts of puts by peer"),
            ("kPutsBefore", "puts", "by parity of the epoch and peer"),
            ("kFault", "fault", "epoch of the last, and what is wrong"),
            ("kListers", "listers", "CTAs that have listed their tokens"),
            ("kListed", "listed", "tokens by peer, over all calls"),
            (
                "kListedBefore",
                "listed_before",
                "by parity of the epoch and peer",
            ),
            ("kEntries", "entries", "by peer and token"),
            (
                "kPacketsOut",
                "packets_out",
                "by parity of the epoch and peer",
            ),
            (
                "kPacketsIn",
                "packets_in",
                "by parity of the epoch and peer",
            ),
            ("kIncoming", "incoming", "sums by peer"),
        ] {
            c.u64(name, offset(region), note);
        }
        c.u64("kPacketBytes", lists.packet_bytes, "of the longest");
        c.u64(
            "kPacketHeaderBytes",
            PACKET_HEADER_BYTES,
            "of them, before choices",
        );
    }
    c.into_list()
}
