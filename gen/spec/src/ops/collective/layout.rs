//! The name and the arguments of a kernel of a collective.

use super::config::{CollectiveOp, CollectiveShape, Protocol, SumEpilogue};
use super::op_plan::CollectivePlan;
use crate::abi::{ArgKind, ArgLayout, Extent, Operand, OperandSpec};
use crate::arch::Arch;
use crate::config::Dtype;
use crate::ops::gemm::Scales;
use crate::ops::gemm::operands::row_scale_args;
use crate::parts::id::{id_prefix, part};
use crate::parts::network::{common_args, results_on_peers};
use crate::topology::Topology;

pub(super) fn id(op_plan: &CollectivePlan, arch: Arch, topology: Topology) -> String {
    let CollectiveShape { m, n } = op_plan.shape;
    let how = match op_plan.protocol {
        Protocol::Ll if op_plan.shots > 0 => format!("ll{}", op_plan.shots),
        Protocol::Ll => "ll".to_owned(),
        Protocol::Simple => format!("c{}", op_plan.chunk_vecs),
    };
    let most = part(op_plan.takes_rows(), "max");
    let to = part(op_plan.stores_to_results(topology), "_symmetric");
    let invariant = part(op_plan.config.batch_invariant, "_invariant");
    let from = op_plan
        .config
        .root(topology.world())
        .map_or(String::new(), |root| format!("_from{root}"));
    format!(
        "{}_m{most}{m}n{n}_{}{}{}{from}_{how}{to}{invariant}",
        id_prefix(op_plan.config.op, arch, topology),
        op_plan.config.dtype,
        op_plan.config.scales.suffix(),
        op_plan.config.epilogue.suffix()
    )
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
        CollectiveOp::AllToAll => {
            let (mirror, times) = (None, u64::from(world));
            let from_all = match op_plan.takes_rows() {
                true => Extent::RowsOfChunks {
                    most,
                    chunks: times,
                    mirror,
                    times,
                },
                false => Extent::Chunks {
                    total: most,
                    per_chunk: op_plan.shape.shard_rows(world),
                    mirror,
                    times,
                },
            };
            (whole, from_all)
        }
        CollectiveOp::Broadcast => {
            let rank = op_plan.config.root(world).unwrap_or(0);
            let of_root = match op_plan.takes_rows() {
                true => Extent::RowsOfOneRank { most, rank },
                false => Extent::OneRank { size: most, rank },
            };
            (of_root, whole)
        }
    }
}

pub(super) fn operands(op_plan: &CollectivePlan, world: u32) -> Vec<OperandSpec> {
    let (x, y) = rows(op_plan, world);
    let (config, n) = (op_plan.config, op_plan.shape.n);
    let matrix = |operand, rows| OperandSpec::new(operand, rows, n, config.dtype);
    let mut result = OperandSpec::new(Operand::Y, y, n, config.result_dtype())
        .in_symmetric_memory(config.symmetric_result);
    if !config.op.exchanges() && config.result_dtype() == config.dtype {
        result = result.in_place_of(Operand::X);
    }
    let epilogue = config.epilogue;
    let scales = |operand, rows, scales: Scales| {
        OperandSpec::new(operand, rows, scales.of_row(n), Dtype::Fp32).of_any_stride()
    };
    let x_scales = scales(Operand::XScales, x, config.scales).at_any_element();
    let mut sent_scales = scales(Operand::YScales, y, config.scales).at_any_element();
    if !config.op.exchanges() {
        sent_scales = sent_scales.in_place_of(Operand::XScales);
    }
    let has_scales = config.scales != Scales::None;
    let one = Extent::Fixed(1);
    let new_residual = matrix(Operand::ResidualOut, y).in_place_of(Operand::Residual);
    let all = [
        (true, matrix(Operand::X, x)),
        (true, result),
        (epilogue.bias, matrix(Operand::Bias, one)),
        (epilogue.residual, matrix(Operand::Residual, y)),
        (epilogue.normalises(), matrix(Operand::Weight, one)),
        (epilogue.normalises(), new_residual),
        (
            epilogue.quantises(),
            scales(Operand::YScales, y, epilogue.result_scales),
        ),
        (has_scales, x_scales),
        (has_scales, sent_scales),
    ];
    let given = all.into_iter().filter(|(given, _)| *given);
    given.map(|(_, operand)| operand).collect()
}

/// The arguments for the epilogue's operands.
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
    let place = ("y_scales", "y_scales_row_bytes");
    kinds.extend(row_scale_args(
        Operand::YScales,
        place,
        epilogue.result_scales,
    ));
    kinds
}

pub(super) fn args(op_plan: &CollectivePlan, topology: Topology) -> ArgLayout {
    let mut kinds = vec![
        ("x", ArgKind::Pointer(Operand::X)),
        ("x_row_bytes", ArgKind::RowStrideBytes(Operand::X)),
        ("y", ArgKind::Pointer(Operand::Y)),
        ("y_row_bytes", ArgKind::RowStrideBytes(Operand::Y)),
    ];
    let scales = op_plan.config.scales;
    kinds.extend(row_scale_args(
        Operand::XScales,
        ("x_scales", "x_scales_row_bytes"),
        scales,
    ));
    kinds.extend(row_scale_args(
        Operand::YScales,
        ("y_scales", "y_scales_row_bytes"),
        scales,
    ));
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
