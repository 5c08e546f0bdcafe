//! The name and the arguments of kernels with products of experts.

use super::config::{DispatchConfig, DispatchShape};
use super::op_plan::DispatchPlan;
use super::router::Router;
use crate::abi::{ArgKind, ArgLayout, Extent, Operand, OperandSpec, Source, Stride, TensorMapSpec};
use crate::arch::Arch;
use crate::config::Dtype;
use crate::ops::gemm::operands::{row_scale_args, scale_args};
use crate::ops::gemm::{BLayout, SCALE_BLOCK, Scales};
use crate::parts::id::{id_prefix, part};
use crate::parts::network::common_args;
use crate::topology::Topology;

pub(super) fn id(op_plan: &DispatchPlan, arch: Arch, topology: Topology) -> String {
    let DispatchShape {
        experts,
        top_k,
        max_tokens,
        hidden,
        intermediate,
    } = op_plan.shape;
    let chunks = op_plan
        .internode
        .as_ref()
        .map(|internode| internode.chunks.id());
    let chunks = chunks.unwrap_or_default();
    let splits = match op_plan.most_splits {
        1 => String::new(),
        splits => format!("k{splits}"),
    };
    let push = match op_plan.dispatches() {
        true => format!("_push{}b{}", op_plan.comm_ctas, op_plan.block_tokens),
        false => String::new(),
    };
    let swiglu = part(op_plan.config.swiglu, "_swiglu");
    let results = part(op_plan.config.quantises_results(), "_to_e4m3_block");
    let invariant = part(op_plan.config.batch_invariant, "_invariant");
    let router = op_plan.config.router.id();
    format!(
        "{}_e{experts}k{top_k}t{max_tokens}r{}h{hidden}i{intermediate}_{}_t{}x{}s{}{splits}{push}{chunks}{swiglu}{}{}{results}{invariant}{router}",
        id_prefix(op_plan.config.op, arch, topology),
        op_plan.max_rows,
        op_plan.config.b_layout,
        op_plan.tile.m,
        op_plan.tile.n,
        op_plan.stages,
        op_plan.config.dtype.suffix(),
        op_plan.config.scales.suffix(),
    )
}

pub(super) fn operands(op_plan: &DispatchPlan, world: u32) -> Vec<OperandSpec> {
    match op_plan.dispatches() {
        true => operands_of_tokens(op_plan, world),
        false => operands_of_rows(op_plan, world),
    }
}

/// Operands of kernels to whose experts tokens are sent.
fn operands_of_tokens(op_plan: &DispatchPlan, world: u32) -> Vec<OperandSpec> {
    let shape = op_plan.shape;
    let local = op_plan.local_experts(world);
    let cols = op_plan.weight_cols();
    let (rows, cols) = match op_plan.config.b_layout {
        BLayout::Kn => (local * shape.hidden, cols),
        BLayout::Nk => (local * cols, shape.hidden),
    };
    let types = op_plan.types();
    let matrix =
        |operand, rows, cols, dtype| OperandSpec::new(operand, Extent::Fixed(rows), cols, dtype);
    let numbers = |operand, elems| OperandSpec::vector(operand, elems, Dtype::Int32);
    let choices = shape.max_tokens * shape.top_k;
    let mut operands = vec![
        matrix(
            Operand::Tokens,
            shape.max_tokens,
            shape.hidden,
            types.tokens,
        ),
        numbers(Operand::NumTokens, 1),
    ];
    let router = &op_plan.config.router;
    let weights = OperandSpec::vector(Operand::TopkWeights, choices, Dtype::Fp32);
    if router.chooses() {
        let logits = matrix(
            Operand::Logits,
            shape.max_tokens,
            shape.experts,
            types.logits,
        );
        operands.push(logits.of_any_stride());
        let bias = OperandSpec::vector(Operand::ScoreBias, shape.experts, Dtype::Fp32);
        operands.extend(router.score_bias.then_some(bias));
        operands.extend([numbers(Operand::TopkIds, choices), weights].map(OperandSpec::written));
    } else {
        operands.push(numbers(Operand::TopkIds, choices));
        operands.extend(op_plan.returns().then_some(weights));
    }
    if op_plan.returns() {
        let (down_rows, down_cols) = match op_plan.config.b_layout {
            BLayout::Kn => (local * shape.intermediate, shape.hidden),
            BLayout::Nk => (local * shape.hidden, shape.intermediate),
        };
        operands.extend([
            matrix(Operand::B, rows, cols, types.weights),
            matrix(Operand::Down, down_rows, down_cols, types.weights),
            matrix(Operand::C, shape.max_tokens, shape.hidden, types.c),
        ]);
    } else {
        operands.extend([
            matrix(Operand::B, rows, cols, types.weights),
            matrix(Operand::C, op_plan.max_rows, shape.intermediate, types.c),
            numbers(Operand::ExpertOffsets, local + 1).written(),
            numbers(Operand::RowIndices, choices).written(),
        ]);
    }
    operands.extend(scales(op_plan, local));
    operands.extend(result_scales(op_plan));
    operands
}

/// Operands of kernels whose experts have rows.
fn operands_of_rows(op_plan: &DispatchPlan, world: u32) -> Vec<OperandSpec> {
    let (shape, types, local) = (op_plan.shape, op_plan.types(), op_plan.local_experts(world));
    let choices = shape.max_tokens * shape.top_k;
    let matrix =
        |operand, rows, cols, dtype| OperandSpec::new(operand, Extent::Fixed(rows), cols, dtype);
    let vector = |operand, elems| OperandSpec::vector(operand, elems, Dtype::Int32);
    let (rows, cols) = match op_plan.config.b_layout {
        BLayout::Kn => (local * shape.intermediate, shape.hidden),
        BLayout::Nk => (local * shape.hidden, shape.intermediate),
    };
    let mut operands = vec![
        matrix(
            Operand::A,
            op_plan.max_rows,
            shape.intermediate,
            types.tokens,
        ),
        vector(Operand::ExpertOffsets, local + 1),
        vector(Operand::NumTokens, 1),
        vector(Operand::RowIndices, choices),
        OperandSpec::vector(Operand::TopkWeights, choices, Dtype::Fp32),
        matrix(Operand::B, rows, cols, types.weights),
        matrix(Operand::C, shape.max_tokens, shape.hidden, types.c),
    ];
    operands.extend(scales(op_plan, local));
    operands
}

/// The scales of C.
fn result_scales(op_plan: &DispatchPlan) -> Option<OperandSpec> {
    op_plan.config.quantises_results().then(|| {
        let rows = Extent::Fixed(op_plan.max_rows);
        let blocks = op_plan.shape.intermediate.div_ceil(SCALE_BLOCK);
        OperandSpec::new(Operand::CScales, rows, blocks, Dtype::Fp32).of_any_stride()
    })
}

/// The scales of tokens or of rows of A, and the scales of the weights of this rank's `local` experts.
fn scales(op_plan: &DispatchPlan, local: u64) -> Vec<OperandSpec> {
    let DispatchShape {
        max_tokens,
        hidden,
        intermediate,
        ..
    } = op_plan.shape;
    let blocks = |size: u64| size.div_ceil(SCALE_BLOCK);
    let (rows, k, cols, parts) = match op_plan.dispatches() {
        true => (max_tokens, hidden, intermediate, op_plan.weights_of_col()),
        false => (op_plan.max_rows, intermediate, hidden, 1),
    };
    let ((rows, of_row_of_a), (of_expert, of_row)) = match op_plan.config.scales {
        Scales::None => return Vec::new(),
        Scales::Tensor => ((1, 1), (1, 1)),
        Scales::Row => ((rows, 1), (parts * cols, 1)),
        Scales::Block => ((rows, blocks(k)), (parts * blocks(cols), blocks(k))),
    };
    let matrix = |operand, rows, cols| {
        OperandSpec::new(operand, Extent::Fixed(rows), cols, Dtype::Fp32).of_any_stride()
    };
    let mut scales = vec![
        matrix(Operand::AScales, rows, of_row_of_a),
        matrix(Operand::BScales, local * of_expert, of_row),
    ];
    if op_plan.is_layer() {
        let rows = local * blocks(hidden);
        scales.push(matrix(Operand::DownScales, rows, blocks(intermediate)));
    }
    scales
}

/// The weights of this rank's experts, with K of `k` elements: [columns or K, the other, expert].
fn weights(
    op_plan: &DispatchPlan,
    world: u32,
    operand: Operand,
    (k, cols, box_cols): (u64, u64, u32),
) -> ArgKind {
    let types = op_plan.types();
    let (inner, outer, box_elems) = match op_plan.config.b_layout {
        BLayout::Kn => (cols, k, [box_cols, types.tile_k()]),
        BLayout::Nk => (k, cols, [types.tile_k(), box_cols]),
    };
    let rows = Extent::Fixed(outer);
    ArgKind::TensorMap(TensorMapSpec {
        source: Source::Operand(operand),
        dtype: types.weights,
        extents: vec![
            Extent::Fixed(inner),
            rows,
            Extent::Fixed(op_plan.local_experts(world)),
        ],
        strides: vec![Stride::RowOf(operand), Stride::RowsOf { operand, rows }],
        box_elems: vec![box_elems[0], box_elems[1], 1],
        box_of_call: false,
    })
}

/// An operand that the kernel writes if it chooses experts, and else reads.
const fn chosen(router: &Router, operand: Operand) -> ArgKind {
    match router.chooses() {
        true => ArgKind::Result(operand),
        false => ArgKind::Pointer(operand),
    }
}

/// The addresses of the scales of tokens, of weights and of C.
fn all_scale_args(config: &DispatchConfig) -> Vec<(&'static str, ArgKind)> {
    let mut kinds = scale_args(config.scales);
    let of_c = ("c_scales", "c_scales_row_bytes");
    kinds.extend(row_scale_args(Operand::CScales, of_c, config.result_scales));
    if config.quantises() {
        kinds.extend([
            ("down_scales", ArgKind::Pointer(Operand::DownScales)),
            (
                "down_scales_row_bytes",
                ArgKind::RowStrideBytes(Operand::DownScales),
            ),
        ]);
    }
    kinds
}

pub(super) fn args(op_plan: &DispatchPlan, topology: Topology) -> ArgLayout {
    let mut kinds = match op_plan.dispatches() {
        true => args_of_tokens(op_plan, topology.world()),
        false => args_of_rows(op_plan, topology.world()),
    };
    kinds.extend([
        ("workspaces", ArgKind::Workspaces),
        ("host", ArgKind::HostPage),
        ("deadline_ns", ArgKind::DeadlineNs),
        ("rank", ArgKind::Rank),
    ]);
    kinds.extend(all_scale_args(&op_plan.config));
    kinds.extend(common_args(topology));
    ArgLayout::new(kinds)
}

/// Arguments of kernels whose experts have rows.
fn args_of_rows(op_plan: &DispatchPlan, world: u32) -> Vec<(&'static str, ArgKind)> {
    let DispatchShape {
        hidden,
        intermediate,
        ..
    } = op_plan.shape;
    let b = (intermediate, hidden, op_plan.down_box_cols());
    vec![
        ("b", weights(op_plan, world, Operand::B, b)),
        ("a", ArgKind::Pointer(Operand::A)),
        ("a_row_bytes", ArgKind::RowStrideBytes(Operand::A)),
        ("expert_offsets", ArgKind::Pointer(Operand::ExpertOffsets)),
        ("num_tokens", ArgKind::Pointer(Operand::NumTokens)),
        ("row_indices", ArgKind::Pointer(Operand::RowIndices)),
        ("topk_weights", ArgKind::Pointer(Operand::TopkWeights)),
        ("c", ArgKind::Pointer(Operand::C)),
        ("c_row_bytes", ArgKind::RowStrideBytes(Operand::C)),
    ]
}

/// Arguments of kernels to whose experts tokens are sent.
fn args_of_tokens(op_plan: &DispatchPlan, world: u32) -> Vec<(&'static str, ArgKind)> {
    let (hidden, returns) = (op_plan.shape.hidden, op_plan.returns());
    let up = (hidden, op_plan.weight_cols(), op_plan.box_cols());
    let down = (op_plan.shape.intermediate, hidden, op_plan.down_box_cols());
    let mut kinds = vec![("b", weights(op_plan, world, Operand::B, up))];
    if returns {
        kinds.push(("down", weights(op_plan, world, Operand::Down, down)));
    }
    kinds.extend([
        ("tokens", ArgKind::Pointer(Operand::Tokens)),
        (
            "token_stride_bytes",
            ArgKind::RowStrideBytes(Operand::Tokens),
        ),
        ("num_tokens", ArgKind::Pointer(Operand::NumTokens)),
    ]);
    let router = &op_plan.config.router;
    kinds.push(("topk_ids", chosen(router, Operand::TopkIds)));
    kinds.extend([
        ("c", ArgKind::Pointer(Operand::C)),
        ("c_row_bytes", ArgKind::RowStrideBytes(Operand::C)),
    ]);
    if returns || router.chooses() {
        kinds.push(("topk_weights", chosen(router, Operand::TopkWeights)));
    }
    if router.chooses() {
        kinds.extend([
            ("logits", ArgKind::Pointer(Operand::Logits)),
            ("logits_row_bytes", ArgKind::RowStrideBytes(Operand::Logits)),
        ]);
        let bias = ("score_bias", ArgKind::Pointer(Operand::ScoreBias));
        kinds.extend(router.score_bias.then_some(bias));
    }
    if !returns {
        kinds.extend([
            ("expert_offsets", ArgKind::Result(Operand::ExpertOffsets)),
            ("row_indices", ArgKind::Result(Operand::RowIndices)),
        ]);
    }
    kinds
}
