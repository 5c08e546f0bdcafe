//! The parts of the source of `combine` that depend on its plan.

use super::assembly::{Assembly, Config};
use super::text::{plural, ranks};
use mkernel_spec::Topology;
use mkernel_spec::plan::{Body, CombinePlan, LIST_HEADER_BYTES, OUTPUTS, SUMS_AHEAD};

/// Assembles the source of `combine`.
pub(super) fn assembly(body: &Body, op_plan: &CombinePlan, topology: Topology) -> Assembly {
    let (header, kernel) = match op_plan.pipeline {
        Some(_) => ("moe/combine", "Combine"),
        None => ("moe/low_latency_combine", "LowLatencyCombine"),
    };
    Assembly {
        title: "C = weighted sums of what experts made of tokens, one launch",
        headers: vec![header],
        config: config(body, op_plan, topology),
        policies: [
            ("kernel", kernel.to_owned()),
            ("kernel_header", format!("mk/{header}.cuh")),
        ]
        .into(),
        banner: banner(body, op_plan, topology),
    }
}

fn banner(body: &Body, op_plan: &CombinePlan, topology: Topology) -> Vec<String> {
    let shape = op_plan.shape;
    let mut lines = vec![format!(
        "spec    {} of {} experts per token, up to {} tokens of {} on each of {}, up to {} rows, {}",
        shape.top_k,
        shape.experts,
        shape.max_tokens,
        shape.hidden,
        ranks(topology),
        op_plan.max_rows,
        op_plan.config.dtype
    )];
    let has_peers = topology.world() > 1;
    if has_peers && op_plan.low_latency_tokens > 0 {
        lines.push(format!(
            "arrive  one row per token and rank in packets, of ranks with at most {} tokens",
            op_plan.low_latency_tokens
        ));
    }
    if has_peers && op_plan.pipeline.is_some() {
        lines.push(format!(
            "arrive  one row per token and rank, a flag for each of {} part{}",
            op_plan.parts(),
            plural(op_plan.parts() as u32)
        ));
    }
    if let (Some(internode), Some(network)) = (&op_plan.internode, &body.network) {
        lines.push(format!(
            "network one row per token and node, {} in a put; up to {} puts of up to {} bytes to each peer",
            internode.chunks.chunk_tokens, network.puts, network.put_bytes
        ));
    }
    lines
}

fn config(body: &Body, op_plan: &CombinePlan, topology: Topology) -> Config {
    let shape = op_plan.shape;
    let mut c = Config::default();
    c.section("ranks").u32("kNodes", topology.nodes, "").u32(
        "kLocalWorld",
        topology.local_world,
        "ranks of a node",
    );
    c.section("tokens")
        .u32("kTopK", shape.top_k as u32, "entries of a token")
        .u32(
            "kMaxTokens",
            shape.max_tokens as u32,
            "most tokens of a rank",
        )
        .u32(
            "kMaxRows",
            op_plan.max_rows as u32,
            "most rows of a rank's experts",
        );
    c.section("sums")
        .element("Element", op_plan.config.dtype, "element of rows")
        .u32("kRowBytes", op_plan.row_bytes() as u32, "")
        .u32(
            "kLowLatencyTokens",
            op_plan.low_latency_tokens as u32,
            "most tokens of a rank whose sums travel in packets",
        );
    if op_plan.config.batch_invariant {
        c.batch_invariant();
    }
    if let Some(pipeline) = op_plan.pipeline {
        c.u32(
            "kPartBytes",
            pipeline.part_bytes,
            "bytes of a row summed at a time",
        )
        .u32(
            "kStages",
            pipeline.stages,
            "stages, each for a part of a row",
        )
        .u32("kOutputs", OUTPUTS, "buffers from which sums are stored");
    }
    if topology.world() > 1 {
        exchange(body, op_plan, topology, &mut c);
    }
    c.section("launch").u32("kThreads", body.launch.threads, "");
    if op_plan.pipeline.is_some() {
        c.u32(
            "kCommCtas",
            op_plan.comm_ctas(),
            "CTAs that only communicate",
        );
    }
    c
}

fn exchange(body: &Body, op_plan: &CombinePlan, topology: Topology, c: &mut Config) {
    c.section("exchange").u32(
        "kCountPackets",
        op_plan.count_packets(),
        "packets with the counts of a rank",
    );
    match (&op_plan.internode, &body.network) {
        (Some(internode), Some(network)) => {
            c.u32(
                "kChannels",
                network.channels.into(),
                "channels to a peer on another node",
            )
            .u32(
                "kChunkTokens",
                internode.chunks.chunk_tokens as u32,
                "sums of a put",
            )
            .u32(
                "kRoomTokens",
                internode.chunks.room_tokens as u32,
                "sums for a peer that may be under way",
            )
            .u32(
                "kListedTokens",
                op_plan.listed_tokens(topology) as u32,
                "tokens on the lists for all peers",
            )
            .bool(
                "kHasSlotsOfRows",
                op_plan.has_slots_of_rows(topology),
                "partial sums lie in slots of rows, not of tokens",
            )
            .u32(
                "kListHeaderBytes",
                LIST_HEADER_BYTES as u32,
                "bytes of a list before its entries",
            );
        }
        _ if op_plan.pipeline.is_some() => {
            c.u32(
                "kSumsAhead",
                SUMS_AHEAD,
                "sums for peers before a sum of an own token, at most",
            );
        }
        _ => {}
    }
}
