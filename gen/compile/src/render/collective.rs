//! The parts of the source of a collective that depend on its plan.

use super::assembly::{Assembly, Config};
use super::text::{puts_line, ranks};
use mkernel_spec::plan::{Body, CollectivePlan};
use mkernel_spec::{CollectiveOp, Protocol, Scales, Topology};

/// Assembles the source of a collective.
pub(super) fn assembly(body: &Body, op_plan: &CollectivePlan, topology: Topology) -> Assembly {
    let (header, kernel) = kernel(op_plan);
    Assembly {
        title: match op_plan.config.op {
            CollectiveOp::AllReduce if op_plan.norm.is_some() => {
                "Y = norm of rows of the sum of X over ranks, one launch"
            }
            CollectiveOp::AllReduce => "Y = sum of X over ranks, one launch",
            CollectiveOp::AllGather => "Y = rows of X of all ranks, one launch",
            CollectiveOp::ReduceScatter => "Y = rows of the sum of X over ranks, one launch",
            CollectiveOp::Broadcast => "Y = X of one rank, one launch",
            CollectiveOp::AllToAll => "Y = this rank's rows of X of all ranks, one launch",
        },
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

/// A header and the template of `mk::collective` that it defines.
const fn kernel(op_plan: &CollectivePlan) -> (&'static str, &'static str) {
    match (op_plan.protocol, op_plan.config.op, op_plan.shots) {
        (Protocol::Ll, CollectiveOp::AllReduce, 1) => ("collective/ll", "LlAllReduceOneShot"),
        (Protocol::Ll, CollectiveOp::AllReduce, _) => ("collective/ll", "LlAllReduceTwoShots"),
        (Protocol::Ll, CollectiveOp::AllGather, _) => ("collective/ll", "LlAllGather"),
        (Protocol::Ll, CollectiveOp::Broadcast, _) => ("collective/ll", "LlBroadcast"),
        (Protocol::Ll, CollectiveOp::AllToAll, _) => ("collective/ll", "LlAllToAll"),
        (Protocol::Ll, CollectiveOp::ReduceScatter, _) => ("collective/ll", "LlReduceScatter"),
        (Protocol::Simple, CollectiveOp::AllReduce, _) => ("collective/simple", "AllReduce"),
        (Protocol::Simple, CollectiveOp::AllGather, _) => ("collective/simple", "AllGather"),
        (Protocol::Simple, CollectiveOp::Broadcast, _) => ("collective/simple", "Broadcast"),
        (Protocol::Simple, CollectiveOp::AllToAll, _) => ("collective/simple", "AllToAll"),
        (Protocol::Simple, CollectiveOp::ReduceScatter, _) => {
            ("collective/simple", "ReduceScatter")
        }
    }
}

fn banner(body: &Body, op_plan: &CollectivePlan, topology: Topology) -> Vec<String> {
    let up_to = if op_plan.takes_rows() { "up to " } else { "" };
    let mut lines = vec![format!(
        "spec    M {up_to}{}, N {}, {}, {}",
        op_plan.shape.m,
        op_plan.shape.n,
        op_plan.config.dtype,
        ranks(topology)
    )];
    if topology.world() > 1 {
        lines.push(match (op_plan.protocol, op_plan.shots) {
            (Protocol::Ll, 1) => "travel  packets, every rank adds up everything".to_owned(),
            (Protocol::Ll, _) => "travel  packets".to_owned(),
            (Protocol::Simple, _) => format!(
                "travel  chunks of {} vectors, {} per shard",
                op_plan.chunk_vecs,
                op_plan.shard_chunks()
            ),
        });
    }
    if op_plan.config.scales != Scales::None {
        lines.push(format!(
            "scales  of each {}, sent behind the elements of the row",
            op_plan.config.scales
        ));
    }
    if let Some(norm) = op_plan.norm {
        let epilogue = op_plan.config.epilogue;
        lines.push(format!(
            "norm    {}, z = {}, {} a row",
            epilogue.norm,
            epilogue.addends("sum"),
            match norm.warps {
                1 => "a warp for".to_owned(),
                warps => format!("{warps} warps for"),
            }
        ));
        if epilogue.quantises() {
            lines.push(format!(
                "Y       e4m3, a scale for each {}",
                epilogue.result_scales
            ));
        }
    }
    lines.extend(body.network.as_ref().map(puts_line));
    lines
}

fn config(body: &Body, op_plan: &CollectivePlan, topology: Topology) -> Config {
    let mut c = Config::default();
    c.section("ranks").u32("kNodes", topology.nodes, "").u32(
        "kLocalWorld",
        topology.local_world,
        "ranks of a node",
    );
    c.section("tensor, in vectors of 16 bytes")
        .u32("kVecs", op_plan.vecs() as u32, "")
        .u32("kRowVecs", op_plan.row_vecs() as u32, "vectors of a row")
        .u32(
            "kShardVecs",
            op_plan.shard_vecs as u32,
            "vectors of a shard; the last shards may be shorter",
        );
    let scales = op_plan.config.scales.of_row(op_plan.shape.n);
    if scales > 0 {
        let note = "fp32 behind the elements of a row, in its last vectors";
        c.u32("kRowScales", scales as u32, note);
    }
    if op_plan.takes_rows() {
        let most = op_plan.shape.m as u32;
        let by_rows = op_plan.config.op != CollectiveOp::AllReduce;
        c.u32(
            "kMaxRows",
            most,
            "most rows of a call; kVecs and kShardVecs are for this many",
        );
        if op_plan.owners.is_none() {
            c.bool("kShardsOfRows", by_rows, "whether a shard has whole rows");
        }
    }
    if op_plan.config.op.reduces() || op_plan.protocol == Protocol::Ll {
        let note = match op_plan.config.epilogue.quantises() {
            true => "element of X",
            false => "element of X and Y",
        };
        c.element("Element", op_plan.config.dtype, note);
    }
    if let (Some(root), Some(owners)) = (op_plan.config.root(topology.world()), op_plan.owners) {
        c.section("broadcast")
            .u32("kRoot", root, "the rank whose X is sent")
            .u32("kFirstOwner", owners.first, "the rank with the first shard")
            .u32("kOwners", owners.count, "ranks with a shard");
    }
    if op_plan.config.op.exchanges() {
        let note = "whether each rank gets a shard of its own from every rank";
        c.bool("kSendsToOwners", true, note);
    }
    if op_plan.config.batch_invariant {
        c.batch_invariant();
    }
    norm(op_plan, &mut c);
    if op_plan.protocol == Protocol::Simple {
        chunks(body, op_plan, &mut c);
    }
    c.section("launch").u32("kThreads", body.launch.threads, "");
    c
}

/// The norm of rows, if rows are normalised.
fn norm(op_plan: &CollectivePlan, c: &mut Config) {
    let Some(norm) = op_plan.norm else { return };
    let eps = op_plan.config.epilogue.eps.value();
    c.section("norm of rows")
        .float("kEps", eps.into(), "added to the mean of squares");
    if op_plan.protocol == Protocol::Ll {
        c.u32("kRowWarps", norm.warps, "warps that share a row")
            .u32(
                "kLaneVecs",
                norm.lane_vecs,
                "vectors of a row that a lane has",
            );
    }
    if let Some(vecs) = op_plan.scale_vecs() {
        let note = "vectors of a row that share a scale in Y, which is e4m3";
        c.u32("kScaleVecs", vecs as u32, note);
    }
}

fn chunks(body: &Body, op_plan: &CollectivePlan, c: &mut Config) {
    c.section("chunks")
        .u32(
            "kChunkVecs",
            op_plan.chunk_vecs as u32,
            "vectors that a warp moves under one flag",
        )
        .u32(
            "kUnroll",
            op_plan.unroll,
            "vectors of a lane under way at a time",
        );
    if op_plan.reduce_unroll > 0 {
        c.u32(
            "kReduceUnroll",
            op_plan.reduce_unroll,
            "vectors that a lane adds up at a time",
        );
    }
    if let Some(network) = &body.network {
        c.section("network").network(network).u32(
            "kPutChunks",
            op_plan.put_chunks as u32,
            "chunks of a put",
        );
    }
    c.section("warps of every CTA");
    let steps = [
        ("kPushWarps", op_plan.warps.push),
        ("kReduceWarps", op_plan.warps.reduce),
        ("kCollectWarps", op_plan.warps.collect),
        ("kRelayWarps", op_plan.warps.relay),
    ];
    for (name, warps) in steps.into_iter().filter(|(_, warps)| *warps > 0) {
        c.u32(name, warps, "");
    }
}
