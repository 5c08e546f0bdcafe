//! Names and roles of a `dispatch_gemm` kernel, and what it is passed.

use super::body::DispatchPlan;
use super::config::DispatchShape;
use crate::abi::{ArgKind, ArgLayout, Extent, Operand, OperandSpec, Source, Stride, TensorMapSpec};
use crate::config::Dtype;
use crate::ops::gemm::{BLayout, THREADS, TILE_K};
use crate::plan::Role;
use crate::plan::network::common_args;
use crate::topology::Topology;

/// Warps that load; the others multiply.
const LOAD_WARPS: u32 = 4;

pub(super) fn id(body: &DispatchPlan, topology: Topology) -> String {
    let DispatchShape {
        experts,
        top_k,
        max_tokens,
        hidden,
        intermediate,
    } = body.shape;
    let swiglu = if body.config.swiglu { "_swiglu" } else { "" };
    format!(
        "{}_sm90a_g{topology}_e{experts}k{top_k}t{max_tokens}r{}h{hidden}i{intermediate}_{}_t{}x{}s{}_push{}b{}{swiglu}",
        body.config.op,
        body.max_rows,
        body.config.b_layout,
        body.tile.m,
        body.tile.n,
        body.stages,
        body.comm_ctas,
        body.block_tokens,
    )
}

pub(super) fn roles(body: &DispatchPlan, grid_ctas: u32) -> Vec<Role> {
    let role = |name, ctas, warps, about: &str| Role {
        name,
        ctas,
        warps,
        about: about.into(),
    };
    let warps = THREADS / 32;
    let all = (0, grid_ctas);
    let mut roles = Vec::new();
    if body.comm_ctas > 0 {
        let about = match body.across {
            None => "first, tokens to the ranks of their experts",
            Some(_) => "first, arrivals, puts, tokens to this node and to puts, other nodes' here",
        };
        roles.push(role("send_tokens", (0, body.comm_ctas), (0, warps), about));
    }
    let about = "tokens and weights to shared memory";
    roles.push(role("load", all, (0, LOAD_WARPS), about));
    let about = "wgmma, bf16 to fp32, and C";
    roles.push(role("multiply", all, (LOAD_WARPS, warps), about));
    roles
}

pub(super) fn operands(body: &DispatchPlan, world: u32) -> Vec<OperandSpec> {
    let shape = body.shape;
    let local = body.local_experts(world);
    let cols = body.weight_cols();
    let (rows, cols) = match body.config.b_layout {
        BLayout::Kn => (local * shape.hidden, cols),
        BLayout::Nk => (local * cols, shape.hidden),
    };
    let matrix =
        |operand, rows, cols| OperandSpec::new(operand, Extent::Fixed(rows), cols, Dtype::Bf16);
    let numbers = |operand, elems| OperandSpec::vector(operand, elems, Dtype::Int32);
    let choices = shape.max_tokens * shape.top_k;
    vec![
        matrix(Operand::Tokens, shape.max_tokens, shape.hidden),
        numbers(Operand::NumTokens, 1),
        numbers(Operand::TopkIds, choices),
        matrix(Operand::B, rows, cols),
        matrix(Operand::C, body.max_rows, shape.intermediate),
        numbers(Operand::ExpertOffsets, local + 1),
        numbers(Operand::RowIndices, choices).written(),
    ]
}

/// The weights of this rank's experts: [columns or hidden, the other, expert].
fn weights(body: &DispatchPlan, world: u32) -> ArgKind {
    let (hidden, cols) = (body.shape.hidden, body.weight_cols());
    let (inner, outer, box_elems) = match body.config.b_layout {
        BLayout::Kn => (cols, hidden, [body.box_cols(), TILE_K]),
        BLayout::Nk => (hidden, cols, [TILE_K, body.box_cols()]),
    };
    let rows = Extent::Fixed(outer);
    ArgKind::TensorMap(TensorMapSpec {
        source: Source::Operand(Operand::B),
        dtype: Dtype::Bf16,
        extents: vec![
            Extent::Fixed(inner),
            rows,
            Extent::Fixed(body.local_experts(world)),
        ],
        strides: vec![
            Stride::RowOf(Operand::B),
            Stride::RowsOf {
                operand: Operand::B,
                rows,
            },
        ],
        box_elems: vec![box_elems[0], box_elems[1], 1],
    })
}

pub(super) fn args(body: &DispatchPlan, topology: Topology) -> ArgLayout {
    let mut kinds = vec![
        ("b", weights(body, topology.world())),
        ("tokens", ArgKind::Pointer(Operand::Tokens)),
        (
            "token_stride_bytes",
            ArgKind::RowStrideBytes(Operand::Tokens),
        ),
        ("num_tokens", ArgKind::Pointer(Operand::NumTokens)),
        ("topk_ids", ArgKind::Pointer(Operand::TopkIds)),
        ("c", ArgKind::Pointer(Operand::C)),
        ("c_row_bytes", ArgKind::RowStrideBytes(Operand::C)),
        ("expert_offsets", ArgKind::Pointer(Operand::ExpertOffsets)),
        ("row_indices", ArgKind::Result(Operand::RowIndices)),
        ("workspaces", ArgKind::Workspaces),
        ("host", ArgKind::HostPage),
        ("deadline_ns", ArgKind::DeadlineNs),
        ("rank", ArgKind::Rank),
    ];
    kinds.extend(common_args(topology));
    ArgLayout::new(kinds)
}
