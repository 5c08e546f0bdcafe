//! Names, roles and memory of a `dispatch_gemm` kernel, and what it is passed.

use super::{DispatchPlan, ELEM_BYTES, FAULT_WORDS, MAX_STAGES};
use crate::abi::{
    ArgKind, ArgLayout, Extent, FLAG_STRIDE_BYTES, Operand, OperandSpec, Source, Stride,
    TensorMapSpec,
};
use crate::config::{BLayout, DispatchShape, Dtype};
use crate::plan::gemm::OUT_COLS;
use crate::plan::{Region, Role, THREADS, TILE_K, Workspace, common_args, network};
use crate::topology::Topology;

/// Sixteen rows of 64 columns for each of eight math warps.
const OUT_BYTES: u32 = 8 * 16 * OUT_COLS * ELEM_BYTES as u32;
/// Two tiles that were taken, four words each.
const TILE_RING_BYTES: u32 = 2 * 16;
/// The 128-byte swizzle repeats every 1024 bytes, and dynamic shared memory may start anywhere.
const SMEM_ALIGN: u32 = 1024;

/// Words of shared memory that say where rows and tiles of this rank's experts are.
fn table_words(body: &DispatchPlan, topology: Topology) -> u32 {
    let (world, peers) = (topology.world(), topology.peers());
    let experts = body.local_experts(world) as u32;
    // Ends of tiles and of rows; by source, rows before and the place in its list; by destination, tokens; by peer, rows
    // there, and tokens from it; a word.
    2 * (experts + 1) + experts * 2 * world + topology.destinations() + 2 * peers + 1
}

/// Shared memory beside the stages.
pub(super) fn fixed_bytes(body: &DispatchPlan, topology: Topology) -> u32 {
    OUT_BYTES
        + row_bytes()
        + TILE_RING_BYTES
        + 4 * table_words(body, topology)
        + 8
        + barrier_bytes(MAX_STAGES)
        + SMEM_ALIGN
}

/// Addresses of a tile's rows.
const fn row_bytes() -> u32 {
    128 * 8
}

/// Full and free of each stage and of each tile that was taken; loaded of each warp's slot.
const fn barrier_bytes(stages: u32) -> u32 {
    8 * (2 * stages + 4 + THREADS / 32)
}

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
    let all = (0, THREADS / 32);
    let compute = (0, grid_ctas);
    let mut roles = vec![role("route", compute, all, "where tokens go")];
    if body.comm_ctas > 0 {
        roles.push(role(
            "push",
            (0, body.comm_ctas),
            all,
            match body.across {
                None => "tokens to their ranks, before they compute",
                Some(_) => {
                    "arrivals, puts; tokens to this node's ranks and to puts, then other nodes'"
                }
            },
        ));
    }
    roles.push(role(
        "load",
        compute,
        (0, 4),
        "tokens and weights to shared memory",
    ));
    roles.push(role(
        "math",
        compute,
        (4, THREADS / 32),
        "wgmma, bf16 to fp32, and C",
    ));
    roles
}

pub(super) fn smem(body: &DispatchPlan, topology: Topology) -> (Vec<Region>, u32) {
    let stage_row = TILE_K * ELEM_BYTES as u32;
    let parts = [
        ("a", body.stages * body.tile.m * stage_row),
        ("b", body.stages * body.tile.n * stage_row),
        ("out", OUT_BYTES),
        ("rows", row_bytes()),
        ("tiles", TILE_RING_BYTES),
        ("barriers", barrier_bytes(body.stages)),
        ("tables", 4 * table_words(body, topology)),
    ];
    let (regions, bytes) = Region::in_a_row(1, parts);
    (regions, bytes as u32 + SMEM_ALIGN)
}

pub(super) fn workspace(body: &DispatchPlan, topology: Topology, grid_ctas: u32) -> Workspace {
    let ranks = u64::from(topology.world());
    let destinations = u64::from(topology.destinations());
    let peers = u64::from(topology.peers());
    let shape = body.shape;
    let mut parts = vec![
        ("counted", FLAG_STRIDE_BYTES),
        ("taken", 8),
        ("fault", 4 * FAULT_WORDS),
        ("slices", u64::from(grid_ctas) * shape.experts * 4),
        ("routed", ranks * FLAG_STRIDE_BYTES),
        ("counts", 2 * ranks * body.count_words() * 4),
        ("list", 2 * ranks * body.source_rows * 4),
    ];
    if ranks > 1 {
        parts.push(("sends", destinations * shape.max_tokens * 4));
        parts.push(("flags", ranks * body.blocks() * FLAG_STRIDE_BYTES));
        let tokens = (ranks - 1) * shape.max_tokens;
        parts.push(("received", tokens * body.token_bytes()));
    }
    if let Some(across) = &body.across {
        let packets = 2 * peers * across.packet_bytes;
        parts.extend(network::arrived_region(topology, 1));
        parts.push(("puts", 2 * peers * 4));
        parts.push(("packets_out", packets));
        parts.push(("packets_in", packets));
        parts.push(("packed", peers * body.blocks() * FLAG_STRIDE_BYTES));
        let tokens = peers * shape.max_tokens;
        parts.push(("outgoing", tokens * body.token_bytes()));
    }
    Workspace::new(parts)
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
        numbers(Operand::Count, 1),
        numbers(Operand::Ids, choices),
        matrix(Operand::B, rows, cols),
        matrix(Operand::C, body.max_rows, shape.intermediate),
        numbers(Operand::Offsets, local + 1),
        numbers(Operand::Places, choices).written(),
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
        ("count", ArgKind::Pointer(Operand::Count)),
        ("ids", ArgKind::Pointer(Operand::Ids)),
        ("c", ArgKind::Pointer(Operand::C)),
        ("c_row_bytes", ArgKind::RowStrideBytes(Operand::C)),
        ("offsets", ArgKind::Pointer(Operand::Offsets)),
        ("places", ArgKind::Result(Operand::Places)),
        ("workspaces", ArgKind::Workspaces),
        ("host", ArgKind::HostPage),
        ("deadline_ns", ArgKind::DeadlineNs),
        ("rank", ArgKind::Rank),
    ];
    kinds.extend(common_args(topology));
    ArgLayout::new(kinds)
}
