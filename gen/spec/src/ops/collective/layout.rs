//! Names and roles of a kernel of a collective, and what it is passed.

use super::body::{CollectivePlan, LL_THREADS};
use super::config::{CollectiveOp, CollectiveShape, Protocol};
use crate::abi::{ArgKind, ArgLayout, Extent, Operand, OperandSpec};
use crate::plan::Role;
use crate::plan::network::common_args;
use crate::topology::Topology;

pub(super) fn id(body: &CollectivePlan, topology: Topology) -> String {
    let CollectiveShape { m, n } = body.shape;
    let how = match body.protocol {
        Protocol::Ll if body.shots > 0 => format!("ll{}", body.shots),
        Protocol::Ll => "ll".to_owned(),
        Protocol::Simple => format!("c{}", body.chunk_vecs),
    };
    format!(
        "{}_sm90a_g{topology}_m{m}n{n}_{}_{how}",
        body.config.op, body.config.dtype
    )
}

pub(super) fn roles(body: &CollectivePlan, topology: Topology, grid_ctas: u32) -> Vec<Role> {
    let role = |name, ctas, warps, about: &str| Role {
        name,
        ctas,
        warps,
        about: about.into(),
    };
    let (all, first) = ((0, grid_ctas), (0, 1));
    if body.protocol == Protocol::Ll {
        let about = "packets to the peers, and what they have sent to the result";
        return vec![role("exchange", all, (0, LL_THREADS / 32), about)];
    }
    let op = body.config.op;
    let mut roles = Vec::new();
    let mut warp = 0;
    let mut next = |name, ctas, count, about| {
        if count > 0 {
            roles.push(role(name, ctas, (warp, warp + count), about));
            warp += count;
        }
    };
    let network = u32::from(topology.peers() > 0);
    let (sums, shards) = (op.reduces(), op.gathers());
    next("watch_arrivals", first, network, "puts of other nodes");
    let count = network * u32::from(sums);
    next(
        "put_sums",
        first,
        count,
        "sums of this node to those who own them",
    );
    let count = network * u32::from(shards);
    next("put_shard", first, count, "own chunks to other nodes");
    let (name, about) = match sums {
        true => ("push", "own parts of the chunks that peers add up"),
        false => ("push_shard", "own chunks to the peers and to the result"),
    };
    next(name, all, body.warps.push, about);
    let about = match shards {
        true => "sums in fp32, to the result and to the peers",
        false => "sums in fp32, to the result",
    };
    next("reduce", all, body.warps.reduce, about);
    next(
        "collect",
        all,
        body.warps.collect,
        "other ranks' chunks to the result",
    );
    next(
        "relay",
        all,
        body.warps.relay,
        "other nodes' chunks to the peers",
    );
    roles
}

/// The rows of X and of Y on a rank.
fn rows(body: &CollectivePlan, world: u32) -> (Extent, Extent) {
    let whole = Extent::Fixed(body.shape.m);
    let shard = Extent::ShardRows {
        total: body.shape.m,
        per_rank: body.shape.shard_rows(world),
    };
    match body.config.op {
        CollectiveOp::AllReduce => (whole, whole),
        CollectiveOp::AllGather => (shard, whole),
        CollectiveOp::ReduceScatter => (whole, shard),
    }
}

pub(super) fn operands(body: &CollectivePlan, world: u32) -> Vec<OperandSpec> {
    let (x, y) = rows(body, world);
    let matrix = |operand, rows| OperandSpec::new(operand, rows, body.shape.n, body.config.dtype);
    vec![matrix(Operand::X, x), matrix(Operand::Y, y)]
}

pub(super) fn args(topology: Topology) -> ArgLayout {
    let mut kinds = vec![
        ("x", ArgKind::Pointer(Operand::X)),
        ("x_row_bytes", ArgKind::RowStrideBytes(Operand::X)),
        ("y", ArgKind::Pointer(Operand::Y)),
        ("y_row_bytes", ArgKind::RowStrideBytes(Operand::Y)),
        ("workspaces", ArgKind::Workspaces),
        ("host", ArgKind::HostPage),
        ("deadline_ns", ArgKind::DeadlineNs),
        ("rank", ArgKind::Rank),
    ];
    kinds.extend(common_args(topology));
    ArgLayout::new(kinds)
}
