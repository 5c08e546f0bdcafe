//! The arguments of operators that reduce, and the rows that one load of A brings.

use super::super::config::GemmOp;
use super::super::core::CoreLayout;
use super::super::maps;
use super::super::op_plan::Reduction;
use super::super::operands;
use super::super::roles::stores_from_registers;
use super::super::spec::GemmSpec;
use crate::abi::{ArgKind, ArgLayout, Extent, Operand};
use crate::arch::Tile;
use crate::parts::network::{common_args, results_on_peers};

/// This rank's rows of C.
pub(super) fn c_rows(spec: GemmSpec<'_>) -> Extent {
    match spec.op() {
        GemmOp::GemmRs => spec.rows_of_shard(),
        _ => spec.all_rows(),
    }
}

/// Rows of A of one load.
pub(super) fn rows_of_a(spec: GemmSpec<'_>, tile: Tile, by_shards: bool) -> u32 {
    let most_rows = if by_shards {
        spec.shard_rows()
    } else {
        spec.shape.m
    };
    maps::load_rows_a(tile, most_rows)
}

/// The kernel's parameter.
pub(super) fn args(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    by_shards: bool,
    reduction: Option<&Reduction>,
) -> ArgLayout {
    let from_registers = stores_from_registers(spec, reduction);
    let on_peers = reduction.is_some_and(|r| r.on_peers);
    let collects = reduction.is_some_and(|r| r.collect_unroll > 0);
    let tile: Tile = core.tile;
    let rows_of_a = rows_of_a(spec, tile, by_shards);
    let mut kinds = vec![
        ("a", maps::a_map(spec, spec.all_rows(), rows_of_a)),
        ("b", maps::b_map(spec, tile)),
    ];
    if !from_registers {
        kinds.push(("c", maps::c_map(spec, c_rows(spec))));
    }
    if on_peers {
        let count = spec.world() as usize;
        kinds.push(("c_of_peers", maps::c_maps(spec, c_rows(spec), count)));
    }
    if on_peers || spec.compares_places() {
        let by_address = on_peers && spec.takes_rows();
        kinds.extend(results_on_peers(Operand::C, by_address));
    }
    if from_registers || collects || spec.takes_rows() {
        kinds.extend(operands::c_address(spec));
    }
    kinds.extend(operands::epilogue_args(spec));
    kinds.push(("workspaces", ArgKind::Workspaces));
    kinds.push(("host", ArgKind::HostPage));
    kinds.push(("deadline_ns", ArgKind::DeadlineNs));
    kinds.push(("rank", ArgKind::Rank));
    kinds.extend(operands::rows_args(spec, rows_of_a));
    kinds.extend(common_args(spec.topology));
    ArgLayout::new(kinds)
}
