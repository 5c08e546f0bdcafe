//! The parts of the source of `combine` that depend on its plan.

use super::assembly::{Assembly, Config};
use super::text::{plural, ranks};
use mkernel_spec::KernelPlan;
use mkernel_spec::plan::{CombinePlan, LIST_HEADER_BYTES, OUTPUTS, SUMS_AHEAD};

/// Assembles the source of `combine`.
pub(super) fn assembly(plan: &KernelPlan, body: &CombinePlan) -> Assembly {
    Assembly {
        title: "C = weighted sums of what experts made of tokens, one launch",
        headers: vec!["moe/combine"],
        config: config(plan, body),
        policies: [].into(),
        banner: banner(plan, body),
    }
}

fn banner(plan: &KernelPlan, body: &CombinePlan) -> Vec<String> {
    let shape = body.shape;
    let mut lines = vec![format!(
        "spec    {} of {} experts per token, up to {} tokens of {} on each of {}, up to {} rows, bf16",
        shape.top_k,
        shape.experts,
        shape.max_tokens,
        shape.hidden,
        ranks(plan.spec.topology()),
        body.max_rows
    )];
    if plan.spec.world() > 1 {
        lines.push(format!(
            "arrive  one row per token and rank, a flag for each of {} part{}",
            body.parts(),
            plural(body.parts() as u32)
        ));
    }
    if let (Some(lists), Some(network)) = (&body.lists, &plan.network) {
        lines.push(format!(
            "network one row per token and node, {} in a put; up to {} puts of up to {} bytes to each peer",
            lists.chunk_tokens, network.puts, network.put_bytes
        ));
    }
    lines
}

fn config(plan: &KernelPlan, body: &CombinePlan) -> Config {
    let (topology, shape) = (plan.spec.topology(), body.shape);
    let mut c = Config::default();
    c.section("ranks").u32("kNodes", topology.nodes, "").u32(
        "kLocalWorld",
        topology.local_world,
        "ranks of a node",
    );
    c.section("tokens")
        .u32("kTopK", shape.top_k as u32, "entries of a token")
        .u32("kMaxTokens", shape.max_tokens as u32, "of a rank")
        .u32("kMaxRows", body.max_rows as u32, "of a rank's experts");
    c.section("sums")
        .u32("kRowBytes", body.row_bytes() as u32, "")
        .u32("kPartBytes", body.part_bytes, "of a row, summed at a time")
        .u32("kStages", body.stages, "that hold parts of rows")
        .u32("kOutputs", OUTPUTS, "buffers that sums leave from");
    if plan.spec.world() > 1 {
        exchange(plan, body, &mut c);
    }
    c.section("launch").u32("kThreads", plan.threads, "").u32(
        "kCommCtas",
        body.comm_ctas(),
        "only communicate",
    );
    c
}

fn exchange(plan: &KernelPlan, body: &CombinePlan, c: &mut Config) {
    c.section("exchange").u32(
        "kCountPackets",
        body.count_packets(),
        "of a rank, before those of its entries",
    );
    match (&body.lists, &plan.network) {
        (Some(lists), Some(network)) => {
            c.u32(
                "kChannels",
                network.channels.into(),
                "to each peer on another node",
            )
            .u32(
                "kChunkTokens",
                lists.chunk_tokens as u32,
                "of a put of sums",
            )
            .u32(
                "kListHeaderBytes",
                LIST_HEADER_BYTES as u32,
                "before the entries of a list",
            );
        }
        _ => {
            c.u32(
                "kSumsAhead",
                SUMS_AHEAD,
                "for peers, at most, before one of an own token",
            );
        }
    }
}
