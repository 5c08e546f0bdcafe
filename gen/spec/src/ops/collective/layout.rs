//! Names and roles of a kernel of a collective, and what it is passed.

use super::config::{CollectiveOp, CollectiveShape, Protocol, SumEpilogue};
use super::op_plan::CollectivePlan;
use crate::abi::{ArgKind, ArgLayout, Extent, Operand, OperandSpec};
use crate::arch::Arch;
use crate::plan::id::id_prefix;
use crate::plan::network::{common_args, results_on_peers};
use crate::plan::{Role, RoleKind};
use crate::topology::Topology;

pub(super) fn id(op_plan: &CollectivePlan, arch: Arch, topology: Topology) -> String {
    let CollectiveShape { m, n } = op_plan.shape;
    let how = match op_plan.protocol {
        Protocol::Ll if op_plan.shots > 0 => format!("ll{}", op_plan.shots),
        Protocol::Ll => "ll".to_owned(),
        Protocol::Simple => format!("c{}", op_plan.chunk_vecs),
    };
    let most = if op_plan.takes_rows() { "max" } else { "" };
    let to = if op_plan.stores_to_results(topology) {
        "_symmetric"
    } else {
        ""
    };
    format!(
        "{}_m{most}{m}n{n}_{}{}_{how}{to}",
        id_prefix(op_plan.config.op, arch, topology),
        op_plan.config.dtype,
        op_plan.config.epilogue.suffix()
    )
}

pub(super) fn roles(
    op_plan: &CollectivePlan,
    topology: Topology,
    threads: u32,
    grid_ctas: u32,
) -> Vec<Role> {
    let (all, first) = ((0, grid_ctas), (0, 1));
    if op_plan.protocol == Protocol::Ll {
        let about = "packets to the peers, and what they have sent to the result";
        return vec![Role::new(RoleKind::Exchange, all, (0, threads / 32), about)];
    }
    let op = op_plan.config.op;
    let mut roles = Vec::new();
    let mut warp = 0;
    let mut next = |kind, ctas, count, about| {
        if count > 0 {
            roles.push(Role::new(kind, ctas, (warp, warp + count), about));
            warp += count;
        }
    };
    let network = u32::from(topology.peers() > 0);
    let (sums, shards) = (op.reduces(), op.gathers());
    next(
        RoleKind::WatchArrivals,
        first,
        network,
        "puts of other nodes",
    );
    let count = network * u32::from(sums);
    next(
        RoleKind::PutSums,
        first,
        count,
        "sums of this node to those who own them",
    );
    let count = network * u32::from(shards);
    next(
        RoleKind::PutShard,
        first,
        count,
        "own chunks to other nodes",
    );
    let (kind, about) = match sums {
        true => (RoleKind::Push, "own parts of the chunks that peers add up"),
        false => (
            RoleKind::PushShard,
            "own chunks to the peers and to the result",
        ),
    };
    next(kind, all, op_plan.warps.push, about);
    let about = match shards {
        true => "sums in fp32, to the result and to the peers",
        false => "sums in fp32, to the result",
    };
    next(RoleKind::Reduce, all, op_plan.warps.reduce, about);
    let about = match (op_plan.norm, op_plan.stores_to_results(topology)) {
        (Some(_), _) => "rows of all ranks' chunks, normalised, to the result",
        (None, true) => "waits for the chunks that other ranks store to the result",
        (None, false) => "other ranks' chunks to the result",
    };
    next(RoleKind::Collect, all, op_plan.warps.collect, about);
    next(
        RoleKind::Relay,
        all,
        op_plan.warps.relay,
        "other nodes' chunks to the peers",
    );
    roles
}

/// The rows of X and of Y on a rank.
fn rows(op_plan: &CollectivePlan, world: u32) -> (Extent, Extent) {
    let most = op_plan.shape.m;
    let (whole, shard) = match op_plan.takes_rows() {
        true => (
            Extent::Rows { most },
            Extent::RowsOfShard {
                most,
                ranks: world.into(),
            },
        ),
        false => (
            Extent::Fixed(most),
            Extent::ShardRows {
                total: most,
                per_rank: op_plan.shape.shard_rows(world),
            },
        ),
    };
    match op_plan.config.op {
        CollectiveOp::AllReduce => (whole, whole),
        CollectiveOp::AllGather => (shard, whole),
        CollectiveOp::ReduceScatter => (whole, shard),
    }
}

pub(super) fn operands(op_plan: &CollectivePlan, world: u32) -> Vec<OperandSpec> {
    let (x, y) = rows(op_plan, world);
    let matrix =
        |operand, rows| OperandSpec::new(operand, rows, op_plan.shape.n, op_plan.config.dtype);
    let result = matrix(Operand::Y, y).in_symmetric_memory(op_plan.config.symmetric_result);
    let epilogue = op_plan.config.epilogue;
    let one = Extent::Fixed(1);
    let new_residual = matrix(Operand::ResidualOut, y).in_place_of(Operand::Residual);
    let all = [
        (true, matrix(Operand::X, x)),
        (true, result.in_place_of(Operand::X)),
        (epilogue.bias, matrix(Operand::Bias, one)),
        (epilogue.residual, matrix(Operand::Residual, y)),
        (epilogue.normalises(), matrix(Operand::Weight, one)),
        (epilogue.normalises(), new_residual),
    ];
    let given = all.into_iter().filter(|(given, _)| *given);
    given.map(|(_, operand)| operand).collect()
}

/// Where the operands of the epilogue lie.
fn epilogue_args(epilogue: SumEpilogue) -> Vec<(&'static str, ArgKind)> {
    let mut kinds = Vec::new();
    if epilogue.bias {
        kinds.push(("bias", ArgKind::Pointer(Operand::Bias)));
    }
    if epilogue.residual {
        let stride = ArgKind::RowStrideBytes(Operand::Residual);
        kinds.push(("residual", ArgKind::Pointer(Operand::Residual)));
        kinds.push(("residual_row_bytes", stride));
    }
    if epilogue.normalises() {
        let stride = ArgKind::RowStrideBytes(Operand::ResidualOut);
        kinds.push(("weight", ArgKind::Pointer(Operand::Weight)));
        kinds.push(("residual_out", ArgKind::Pointer(Operand::ResidualOut)));
        kinds.push(("residual_out_row_bytes", stride));
    }
    kinds
}

pub(super) fn args(op_plan: &CollectivePlan, topology: Topology) -> ArgLayout {
    let mut kinds = vec![
        ("x", ArgKind::Pointer(Operand::X)),
        ("x_row_bytes", ArgKind::RowStrideBytes(Operand::X)),
        ("y", ArgKind::Pointer(Operand::Y)),
        ("y_row_bytes", ArgKind::RowStrideBytes(Operand::Y)),
    ];
    kinds.extend(epilogue_args(op_plan.config.epilogue));
    if op_plan.compares_places(topology) {
        let by_address = op_plan.stores_to_results(topology);
        kinds.extend(results_on_peers(Operand::Y, by_address));
    }
    kinds.extend([
        ("workspaces", ArgKind::Workspaces),
        ("host", ArgKind::HostPage),
        ("deadline_ns", ArgKind::DeadlineNs),
        ("rank", ArgKind::Rank),
    ]);
    if op_plan.takes_rows() {
        kinds.extend([
            ("rows", ArgKind::Rows),
            ("rows_address", ArgKind::RowsAddress),
        ]);
    }
    kinds.extend(common_args(topology));
    ArgLayout::new(kinds)
}
