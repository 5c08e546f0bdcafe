//! The parts of the source of a collective that depend on its plan.

use super::assembly::{Assembly, Config};
use super::text::{puts_line, ranks};
use mkernel_spec::plan::CollectivePlan;
use mkernel_spec::{CollectiveOp, Dtype, KernelPlan, Protocol};

/// Assembles the source of a collective.
pub(super) fn assembly(plan: &KernelPlan, body: &CollectivePlan) -> Assembly {
    let (header, kernel) = kernel(body);
    Assembly {
        title: match body.config.op {
            CollectiveOp::AllReduce => "Y = sum of X over ranks, one launch",
            CollectiveOp::AllGather => "Y = rows of X of all ranks, one launch",
            CollectiveOp::ReduceScatter => "Y = rows of the sum of X over ranks, one launch",
        },
        headers: vec![header],
        config: config(plan, body),
        policies: [("kernel", kernel.to_owned())].into(),
        banner: banner(plan, body),
    }
}

/// A header and the template of `mk::collective` that it defines.
const fn kernel(body: &CollectivePlan) -> (&'static str, &'static str) {
    match (body.protocol, body.config.op, body.shots) {
        (Protocol::Ll, CollectiveOp::AllReduce, 1) => ("collective/ll", "LlAllReduceOneShot"),
        (Protocol::Ll, CollectiveOp::AllReduce, _) => ("collective/ll", "LlAllReduceTwoShots"),
        (Protocol::Ll, CollectiveOp::AllGather, _) => ("collective/ll", "LlAllGather"),
        (Protocol::Ll, CollectiveOp::ReduceScatter, _) => ("collective/ll", "LlReduceScatter"),
        (Protocol::Simple, CollectiveOp::AllReduce, _) => ("collective/simple", "AllReduce"),
        (Protocol::Simple, CollectiveOp::AllGather, _) => ("collective/simple", "AllGather"),
        (Protocol::Simple, CollectiveOp::ReduceScatter, _) => {
            ("collective/simple", "ReduceScatter")
        }
    }
}

fn banner(plan: &KernelPlan, body: &CollectivePlan) -> Vec<String> {
    let mut lines = vec![format!(
        "spec    M {}, N {}, {}, {}",
        body.shape.m,
        body.shape.n,
        body.config.dtype,
        ranks(plan.spec.topology())
    )];
    if plan.spec.world() > 1 {
        lines.push(match (body.protocol, body.shots) {
            (Protocol::Ll, 1) => "travel  packets, every rank adds up everything".to_owned(),
            (Protocol::Ll, _) => "travel  packets".to_owned(),
            (Protocol::Simple, _) => format!(
                "travel  chunks of {} vectors, {} per shard",
                body.chunk_vecs,
                body.shard_chunks()
            ),
        });
    }
    lines.extend(plan.network.as_ref().map(puts_line));
    lines
}

fn config(plan: &KernelPlan, body: &CollectivePlan) -> Config {
    let topology = plan.spec.topology();
    let mut c = Config::default();
    c.section("ranks").u32("kNodes", topology.nodes, "").u32(
        "kLocalWorld",
        topology.local_world,
        "ranks of a node",
    );
    c.section("tensor, in vectors of 16 bytes")
        .u32("kVecs", body.vecs() as u32, "")
        .u32("kRowVecs", body.row_vecs() as u32, "of a row")
        .u32(
            "kShardVecs",
            body.shard_vecs as u32,
            "of every rank but perhaps the last ones",
        );
    if body.config.op.reduces() {
        let is_fp32 = body.config.dtype == Dtype::Fp32;
        c.bool("kFp32", is_fp32, "whether elements are fp32, else bf16");
    }
    if body.protocol == Protocol::Simple {
        chunks(plan, body, &mut c);
    }
    c.section("launch").u32("kThreads", plan.threads, "");
    c
}

fn chunks(plan: &KernelPlan, body: &CollectivePlan, c: &mut Config) {
    c.section("chunks")
        .u32(
            "kChunkVecs",
            body.chunk_vecs as u32,
            "that a warp moves under one flag",
        )
        .u32(
            "kUnroll",
            body.unroll,
            "vectors of a lane under way at a time",
        );
    if body.reduce_unroll > 0 {
        c.u32(
            "kReduceUnroll",
            body.reduce_unroll,
            "of which a lane adds up the parts at a time",
        );
    }
    if let Some(network) = &plan.network {
        c.section("network")
            .u32("kChannels", network.channels.into(), "to each peer")
            .u32("kPutsPerPeer", network.puts, "of a call, on each channel")
            .u32("kPutChunks", body.put_chunks as u32, "of a put");
    }
    c.section("warps of every CTA");
    let steps = [
        ("kPushWarps", body.warps.push),
        ("kReduceWarps", body.warps.reduce),
        ("kCollectWarps", body.warps.collect),
        ("kRelayWarps", body.warps.relay),
    ];
    for (name, warps) in steps.into_iter().filter(|(_, warps)| *warps > 0) {
        c.u32(name, warps, "");
    }
}
