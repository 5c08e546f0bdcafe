//! Names and roles of a `ring_attention` kernel, and what it is passed.

use super::body::{AttentionPlan, ELEM_BYTES, SUB_TILE_COLS, TILE_ROWS};
use super::config::{AttentionConfig, AttentionShape, Layout};
use crate::abi::{ArgKind, ArgLayout, Extent, Operand, OperandSpec, Source, Stride, TensorMapSpec};
use crate::config::Dtype;
use crate::ops::gemm::THREADS;
use crate::plan::Role;
use crate::plan::network::common_args;
use crate::topology::Topology;

pub(super) fn id(body: &AttentionPlan, topology: Topology) -> String {
    let AttentionShape {
        batch,
        seq,
        heads,
        kv_heads,
        head_dim,
    } = body.shape;
    let AttentionConfig {
        op,
        layout,
        causal,
        placement,
        ..
    } = body.config;
    let causal = if causal { "_causal" } else { "" };
    let ring = match body.is_ring() && topology.world() > 1 {
        true => format!("_ring{}", body.kv_slots),
        false => String::new(),
    };
    format!(
        "{op}_sm90a_g{}_b{batch}s{seq}h{heads}x{kv_heads}d{head_dim}_{layout}{causal}_{placement}{ring}",
        topology
    )
}

pub(super) fn roles(body: &AttentionPlan, grid_ctas: u32) -> Vec<Role> {
    let role = |name, ctas, warps, about: &str| Role {
        name,
        ctas,
        warps,
        about: about.into(),
    };
    let all = (0, grid_ctas);
    let pushing = (0, body.push_ctas);
    let mut roles = Vec::new();
    if body.put_tiles > 0 {
        let first = (0, 1);
        roles.push(role("watch_arrivals", first, (1, 2), "puts of other nodes"));
        roles.push(role("put_kv", first, (2, 3), "own K and V, to other nodes"));
        roles.push(role(
            "push_kv",
            pushing,
            (3, 4),
            "own K and V to this node and to puts, other nodes' to this node",
        ));
    } else if body.push_ctas > 0 {
        roles.push(role(
            "push_kv",
            pushing,
            (0, body.push_warps),
            "first, own K and V to the peers",
        ));
    }
    roles.push(role("load", all, (0, 1), "Q, K and V to shared memory"));
    let multiply = (4, THREADS / 32);
    roles.push(role("multiply", all, multiply, "wgmma, softmax, O and LSE"));
    roles
}

/// Rows of this rank: those of its chunks, `times` over.
fn rows(body: &AttentionPlan, world: u32, times: u64) -> Extent {
    Extent::Chunks {
        total: body.shape.seq,
        per_chunk: u64::from(body.segment_rows),
        mirror: (body.config.placement.segments() > 1).then(|| 2 * u64::from(world) - 1),
        times,
    }
}

/// Heads of an operand.
const fn heads_of(shape: AttentionShape, operand: Operand) -> u64 {
    match operand {
        Operand::K | Operand::V => shape.kv_heads,
        _ => shape.heads,
    }
}

pub(super) fn operands(body: &AttentionPlan, world: u32) -> Vec<OperandSpec> {
    let AttentionShape {
        batch,
        heads,
        head_dim,
        ..
    } = body.shape;
    let tensor = |operand| {
        let of_operand = heads_of(body.shape, operand);
        let (rows, cols) = match body.config.layout {
            Layout::Bshd => (rows(body, world, batch), of_operand * head_dim),
            Layout::Bhsd => (rows(body, world, batch * of_operand), head_dim),
        };
        OperandSpec::new(operand, rows, cols, Dtype::Bf16)
    };
    let mut operands: Vec<_> = [Operand::Q, Operand::K, Operand::V, Operand::O]
        .map(tensor)
        .into();
    let lse_rows = rows(body, world, batch * heads);
    operands.push(OperandSpec::new(Operand::Lse, lse_rows, 1, Dtype::Fp32));
    operands
}

/// Q, K or V as `[B, H, S, D]`, however it lies in memory: 64 columns of 128 rows of a head.
fn map(body: &AttentionPlan, world: u32, operand: Operand) -> ArgKind {
    let AttentionShape {
        batch, head_dim, ..
    } = body.shape;
    let heads = heads_of(body.shape, operand);
    let times = |times| Stride::RowsOf {
        operand,
        rows: rows(body, world, times),
    };
    let (head_stride, batch_stride) = match body.config.layout {
        Layout::Bshd => (Stride::Bytes(head_dim * ELEM_BYTES), times(1)),
        Layout::Bhsd => (times(1), times(heads)),
    };
    ArgKind::TensorMap(TensorMapSpec {
        source: Source::Operand(operand),
        dtype: Dtype::Bf16,
        extents: vec![
            Extent::Fixed(head_dim),
            rows(body, world, 1),
            Extent::Fixed(heads),
            Extent::Fixed(batch),
        ],
        strides: vec![Stride::RowOf(operand), head_stride, batch_stride],
        box_elems: vec![SUB_TILE_COLS, TILE_ROWS, 1, 1],
    })
}

pub(super) fn args(body: &AttentionPlan, topology: Topology) -> ArgLayout {
    let world = topology.world();
    let mut kinds = vec![
        ("q", map(body, world, Operand::Q)),
        ("k", map(body, world, Operand::K)),
        ("v", map(body, world, Operand::V)),
        ("o", ArgKind::Pointer(Operand::O)),
        ("o_row_bytes", ArgKind::RowStrideBytes(Operand::O)),
        ("lse", ArgKind::Pointer(Operand::Lse)),
        ("workspaces", ArgKind::Workspaces),
        ("host", ArgKind::HostPage),
        ("deadline_ns", ArgKind::DeadlineNs),
        ("rank", ArgKind::Rank),
    ];
    kinds.extend(common_args(topology));
    ArgLayout::new(kinds)
}
