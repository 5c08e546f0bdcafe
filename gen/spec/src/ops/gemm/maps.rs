//! The tensor maps of A, B and C.

use super::config::BLayout;
use super::op_plan::OUT_ROWS;
use super::operands::result;
use super::spec::GemmSpec;
use crate::abi::{ArgKind, Extent, Operand, Source, Stride, TensorMapSpec, rows_of_load};
use crate::arch::Tile;
use crate::config::Dtype;

fn operand_map(
    operand: Operand,
    dtype: Dtype,
    extents: [Extent; 2],
    box_elems: [u32; 2],
) -> TensorMapSpec {
    TensorMapSpec {
        source: Source::Operand(operand),
        dtype,
        extents: extents.to_vec(),
        strides: vec![Stride::RowOf(operand)],
        box_elems: box_elems.to_vec(),
        box_of_call: false,
    }
}

/// Rows of A of one load, if C has at most `rows`.
pub(super) fn load_rows_a(tile: Tile, rows: u64) -> u32 {
    rows_of_load(tile.m, rows)
}

/// The tensor map over the caller's A. This rank has `rows` rows of A, and a load brings `load_rows` rows.
pub(super) fn a_map(spec: GemmSpec<'_>, rows: Extent, load_rows: u32) -> ArgKind {
    let (extents, types) = ([Extent::Fixed(spec.shape.k), rows], spec.types());
    ArgKind::TensorMap(TensorMapSpec {
        box_of_call: spec.takes_rows(),
        ..operand_map(Operand::A, types.a, extents, [types.tile_k(), load_rows])
    })
}

/// Rows of A in a stage, if C has at most `rows`. The products of a tile read `tile.m` rows, which must all lie inside the stage.
pub(super) fn stage_rows_a(tile: Tile, rows: u64) -> u32 {
    load_rows_a(tile, rows).max(tile.m.saturating_sub(tile.n))
}

/// The tensor map over B.
pub(super) fn b_map(spec: GemmSpec<'_>, tile: Tile) -> ArgKind {
    let (n, k) = (Extent::Fixed(spec.cols_of_b()), Extent::Fixed(spec.shape.k));
    // All columns of a tile that lie together.
    let load_cols = match spec.epilogue().weight_cols() {
        1 => tile.n,
        _ => spec.group_cols(tile),
    };
    let (dtype, tile_k) = (spec.types().b, spec.types().tile_k());
    ArgKind::TensorMap(match spec.b_layout() {
        BLayout::Kn => operand_map(Operand::B, dtype, [n, k], [dtype.per_line(), tile_k]),
        BLayout::Nk => operand_map(Operand::B, dtype, [k, n], [tile_k, load_cols]),
    })
}

/// The tensor map over the operand that tiles are stored to, whose rows on this rank are `rows`. A box is an output buffer.
pub(super) fn c_map(spec: GemmSpec<'_>, rows: Extent) -> ArgKind {
    ArgKind::TensorMap(map_of_c(spec, rows))
}

/// The tensor maps over C in symmetric memory, on each of `count` ranks of this node.
pub(super) fn c_maps(spec: GemmSpec<'_>, rows: Extent, count: usize) -> ArgKind {
    let map = map_of_c(spec, rows);
    ArgKind::TensorMapsOnPeers { map, count }
}

fn map_of_c(spec: GemmSpec<'_>, rows: Extent) -> TensorMapSpec {
    let (dtype, operand) = (spec.types().c, result(spec));
    TensorMapSpec {
        source: Source::Operand(operand),
        dtype,
        extents: vec![Extent::Fixed(spec.shape.n), rows],
        strides: vec![Stride::RowOf(operand)],
        box_elems: vec![dtype.per_line(), OUT_ROWS],
        box_of_call: false,
    }
}
