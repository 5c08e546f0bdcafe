//! The name and the arguments of a `ring_attention` kernel.

use super::config::{AttentionConfig, AttentionShape};
use super::op_plan::{AttentionPlan, TILE_ROWS};
use super::placement::Layout;
use crate::abi::{ArgKind, ArgLayout, Extent, Operand, OperandSpec, Source, Stride, TensorMapSpec};
use crate::arch::Arch;
use crate::config::Dtype;
use crate::parts::id::id_prefix;
use crate::parts::network::common_args;
use crate::topology::Topology;

pub(super) fn id(op_plan: &AttentionPlan, arch: Arch, topology: Topology) -> String {
    let AttentionShape {
        batch,
        seq,
        heads,
        kv_heads,
        head_dim,
    } = op_plan.shape;
    let AttentionConfig {
        op,
        layout,
        causal,
        placement,
        dtype,
        lse,
        ..
    } = op_plan.config;
    let most = if op_plan.takes_rows() { "max" } else { "" };
    let sequences = if op_plan.config.packed { "upto" } else { "" };
    let cached = op_plan.config.cached;
    let cached = cached.map_or(String::new(), |rows| format!("c{rows}"));
    let causal = if causal { "_causal" } else { "" };
    let lse = if lse { "" } else { "_nolse" };
    let ring = match op_plan.is_ring() && topology.world() > 1 {
        true => format!("_ring{}", op_plan.kv_slots),
        false => String::new(),
    };
    format!(
        "{}_b{sequences}{batch}s{most}{seq}{cached}h{heads}x{kv_heads}d{head_dim}_{layout}{causal}_{placement}{lse}{ring}{}",
        id_prefix(op, arch, topology),
        dtype.suffix()
    )
}

/// Rows of an operand on this rank: the rows of the rank's chunks, repeated `times` times. The host does not know the rows of
/// packed sequences, nor the rows of K and V that are cached. Every rank therefore has room for the largest number of rows.
fn rows(op_plan: &AttentionPlan, world: u32, operand: Operand, times: u64) -> Extent {
    let placement = op_plan.config.placement;
    if op_plan.config.packed {
        return Extent::Fixed(op_plan.shape.packed_rank_rows(world, placement) * times);
    }
    if let (Some(cached), Operand::K | Operand::V) = (op_plan.config.cached, operand) {
        let new = op_plan.shape.rank_rows(world, placement);
        return Extent::Fixed((u64::from(cached) + new) * times);
    }
    let (most, segments) = (op_plan.shape.seq, placement.segments());
    let chunks = u64::from(world) * u64::from(segments);
    let rows = Extent::RowsOfChunks {
        most,
        chunks,
        mirror: (segments > 1).then(|| chunks - 1),
        times,
    };
    match op_plan.takes_rows() {
        true => rows,
        false => rows.in_call(most),
    }
}

/// Heads of an operand.
const fn heads_of(shape: AttentionShape, operand: Operand) -> u64 {
    match operand {
        Operand::K | Operand::V => shape.kv_heads,
        _ => shape.heads,
    }
}

pub(super) fn operands(op_plan: &AttentionPlan, world: u32) -> Vec<OperandSpec> {
    let AttentionShape {
        heads, head_dim, ..
    } = op_plan.shape;
    let batch = op_plan.batches();
    let tensor = |operand| {
        let of_operand = heads_of(op_plan.shape, operand);
        let (rows, cols) = match op_plan.config.layout {
            Layout::Bshd => (rows(op_plan, world, operand, batch), of_operand * head_dim),
            Layout::Bhsd => (rows(op_plan, world, operand, batch * of_operand), head_dim),
        };
        OperandSpec::new(operand, rows, cols, op_plan.config.dtype)
    };
    let mut operands: Vec<_> = [Operand::Q, Operand::K, Operand::V, Operand::O]
        .map(tensor)
        .into();
    if op_plan.config.lse {
        let lse_rows = rows(op_plan, world, Operand::Lse, batch * heads);
        operands.push(OperandSpec::new(Operand::Lse, lse_rows, 1, Dtype::Fp32));
    }
    if op_plan.config.packed {
        let offsets = op_plan.shape.batch + 1;
        operands.push(OperandSpec::vector(
            Operand::CuSeqlens,
            offsets,
            Dtype::Int32,
        ));
    }
    if op_plan.config.cached.is_some() {
        let counts = u64::from(world) * batch;
        operands.push(OperandSpec::vector(
            Operand::CachedRows,
            counts,
            Dtype::Int32,
        ));
    }
    operands
}

/// Q, K or V as `[B, H, S, D]`, however it lies in memory: 64 columns of 128 rows of a head. If other rows lie behind the rows
/// of a chunk, the map has one more dimension, as `mk/attention/tile_load.cuh` describes.
fn map(op_plan: &AttentionPlan, world: u32, operand: Operand) -> ArgKind {
    let (batch, head_dim) = (op_plan.batches(), op_plan.shape.head_dim);
    let dtype = op_plan.config.dtype;
    let heads = heads_of(op_plan.shape, operand);
    let times = |times| Stride::RowsOf {
        operand,
        rows: rows(op_plan, world, operand, times),
    };
    let (head_stride, batch_stride) = match op_plan.config.layout {
        Layout::Bshd => (Stride::Bytes(head_dim * dtype.bytes()), times(1)),
        Layout::Bhsd => (times(1), times(heads)),
    };
    let mut map = TensorMapSpec {
        source: Source::Operand(operand),
        dtype,
        extents: vec![
            Extent::Fixed(head_dim),
            rows(op_plan, world, operand, 1),
            Extent::Fixed(heads),
            Extent::Fixed(batch),
        ],
        strides: vec![Stride::RowOf(operand), head_stride, batch_stride],
        box_elems: vec![dtype.per_line(), TILE_ROWS, 1, 1],
        box_of_call: false,
    };
    if op_plan.has_rows_behind() {
        let tile_rows = u64::from(TILE_ROWS);
        map.source = Source::BeforeOperand {
            operand,
            rows: tile_rows - 1,
        };
        map.extents.insert(1, Extent::Fixed(tile_rows));
        map.strides.insert(0, Stride::RowOf(operand));
        map.box_elems.push(1);
    }
    ArgKind::TensorMap(map)
}

pub(super) fn args(op_plan: &AttentionPlan, topology: Topology) -> ArgLayout {
    let world = topology.world();
    let mut kinds = vec![
        ("q", map(op_plan, world, Operand::Q)),
        ("k", map(op_plan, world, Operand::K)),
        ("v", map(op_plan, world, Operand::V)),
        ("o", ArgKind::Pointer(Operand::O)),
        ("o_row_bytes", ArgKind::RowStrideBytes(Operand::O)),
    ];
    if op_plan.config.lse {
        kinds.push(("lse", ArgKind::Pointer(Operand::Lse)));
    }
    kinds.extend([
        ("workspaces", ArgKind::Workspaces),
        ("host", ArgKind::HostPage),
        ("deadline_ns", ArgKind::DeadlineNs),
        ("rank", ArgKind::Rank),
    ]);
    if op_plan.config.packed {
        kinds.push(("cu_seqlens", ArgKind::Pointer(Operand::CuSeqlens)));
    } else if op_plan.takes_rows() {
        kinds.extend([
            ("rows", ArgKind::Rows),
            ("rows_address", ArgKind::RowsAddress),
        ]);
    }
    if op_plan.config.cached.is_some() {
        kinds.push(("cached_rows", ArgKind::Pointer(Operand::CachedRows)));
    }
    kinds.extend(common_args(topology));
    ArgLayout::new(kinds)
}
