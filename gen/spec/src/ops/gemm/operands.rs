//! The operands of a GEMM operator, and the arguments that give their addresses.

use super::config::{BLayout, GemmShape};
use super::scales::{SCALE_BLOCK, Scales};
use super::spec::GemmSpec;
use crate::abi::{ArgKind, Extent, Operand, OperandSpec};
use crate::config::Dtype;

/// The operand that tiles are stored to: C, or the new residual if rows are normalised.
pub(super) fn result(spec: GemmSpec<'_>) -> Operand {
    match spec.epilogue().normalises() {
        true => Operand::ResidualOut,
        false => Operand::C,
    }
}

/// The address of the result, for kernels that also store it without TMA.
pub(super) fn c_address(spec: GemmSpec<'_>) -> [(&'static str, ArgKind); 2] {
    let operand = result(spec);
    [
        ("c_rows", ArgKind::Pointer(operand)),
        ("c_row_bytes", ArgKind::RowStrideBytes(operand)),
    ]
}

/// The rows of the call, and the rows of A of one load, at most `most`. Empty if the rows are fixed.
pub(super) fn rows_args(spec: GemmSpec<'_>, most: u32) -> Vec<(&'static str, ArgKind)> {
    match spec.takes_rows() {
        true => vec![
            ("rows", ArgKind::Rows),
            ("rows_address", ArgKind::RowsAddress),
            ("load_rows_a", ArgKind::BoxRows { most }),
        ],
        false => Vec::new(),
    }
}

/// The operands that the caller passes. This rank's A has `a_rows`, and its C has `c_rows`.
pub(super) fn operands(spec: GemmSpec<'_>, a_rows: Extent, c_rows: Extent) -> Vec<OperandSpec> {
    let GemmShape { n, k, .. } = spec.shape;
    let cols_of_b = spec.cols_of_b();
    let (b_rows, b_cols) = match spec.b_layout() {
        BLayout::Kn => (k, cols_of_b),
        BLayout::Nk => (cols_of_b, k),
    };
    let (epilogue, types) = (spec.epilogue(), spec.types());
    let addend = |operand, rows| OperandSpec::new(operand, rows, n, types.addend);
    let result = OperandSpec::new(Operand::C, c_rows, n, spec.config.result_dtype())
        .in_symmetric_memory(spec.config.symmetric_result);
    // A norm writes elements of C while it reads other elements of its input, and elements of e4m3 are shorter than those of the
    // residual. So C cannot replace the residual.
    let result = match epilogue.normalises() || epilogue.quantises() {
        true => result,
        false => result.in_place_of(Operand::Residual),
    };
    let mut operands = vec![
        OperandSpec::new(Operand::A, a_rows, k, types.a)
            .in_symmetric_memory(spec.config.symmetric_a),
        OperandSpec::new(Operand::B, Extent::Fixed(b_rows), b_cols, types.b),
        result,
    ];
    operands.extend(scales(spec, a_rows));
    if epilogue.bias {
        let one = Extent::Fixed(1);
        operands.push(OperandSpec::new(
            Operand::Bias,
            one,
            cols_of_b,
            types.addend,
        ));
    }
    if epilogue.residual {
        operands.push(addend(Operand::Residual, c_rows));
    }
    if epilogue.normalises() {
        operands.push(addend(Operand::Weight, Extent::Fixed(1)));
        let new_residual = addend(Operand::ResidualOut, c_rows);
        operands.push(new_residual.in_place_of(Operand::Residual));
    }
    if epilogue.quantises() {
        let cols = epilogue.result_scales.of_row(n);
        let scales = OperandSpec::new(Operand::CScales, c_rows, cols, Dtype::Fp32);
        operands.push(scales.of_any_stride());
    }
    operands
}

/// The scales of A, which has `a_rows` rows, and of B.
fn scales(spec: GemmSpec<'_>, a_rows: Extent) -> Vec<OperandSpec> {
    let GemmShape { n, k, .. } = spec.shape;
    let weight_cols = u64::from(spec.epilogue().weight_cols());
    let blocks = |size: u64| size.div_ceil(SCALE_BLOCK);
    let ((a_rows, a_cols), (b_rows, b_cols)) = match spec.config.scales {
        Scales::None => return Vec::new(),
        Scales::Tensor => ((Extent::Fixed(1), 1), (1, 1)),
        Scales::Row => ((a_rows, 1), (spec.cols_of_b(), 1)),
        Scales::Block => ((a_rows, blocks(k)), (weight_cols * blocks(n), blocks(k))),
    };
    vec![
        OperandSpec::new(Operand::AScales, a_rows, a_cols, Dtype::Fp32).of_any_stride(),
        OperandSpec::new(Operand::BScales, Extent::Fixed(b_rows), b_cols, Dtype::Fp32)
            .of_any_stride(),
    ]
}

/// The addresses of the scales of A and B.
pub(crate) fn scale_args(scales: Scales) -> Vec<(&'static str, ArgKind)> {
    if scales == Scales::None {
        return Vec::new();
    }
    let mut kinds = vec![
        ("a_scales", ArgKind::Pointer(Operand::AScales)),
        ("b_scales", ArgKind::Pointer(Operand::BScales)),
    ];
    if scales == Scales::Block {
        kinds.push((
            "a_scales_row_bytes",
            ArgKind::RowStrideBytes(Operand::AScales),
        ));
        kinds.push((
            "b_scales_row_bytes",
            ArgKind::RowStrideBytes(Operand::BScales),
        ));
    }
    kinds
}

/// The address of the scales of rows. Only rows with several scales have a stride.
pub(crate) fn row_scale_args(
    operand: Operand,
    (address, row_bytes): (&'static str, &'static str),
    scales: Scales,
) -> Vec<(&'static str, ArgKind)> {
    let all = [
        (scales != Scales::None, (address, ArgKind::Pointer(operand))),
        (
            scales == Scales::Block,
            (row_bytes, ArgKind::RowStrideBytes(operand)),
        ),
    ];
    let given = all.into_iter().filter(|(given, _)| *given);
    given.map(|(_, arg)| arg).collect()
}

/// The addresses of scales, bias, residual and weight, and of the normalised result.
pub(super) fn epilogue_args(spec: GemmSpec<'_>) -> Vec<(&'static str, ArgKind)> {
    let mut kinds = scale_args(spec.config.scales);
    if spec.epilogue().bias {
        kinds.push(("bias", ArgKind::Pointer(Operand::Bias)));
    }
    if spec.epilogue().residual {
        kinds.push(("residual", ArgKind::Pointer(Operand::Residual)));
        kinds.push((
            "residual_row_bytes",
            ArgKind::RowStrideBytes(Operand::Residual),
        ));
    }
    if spec.epilogue().normalises() {
        kinds.push(("weight", ArgKind::Pointer(Operand::Weight)));
        kinds.push(("y", ArgKind::Pointer(Operand::C)));
        kinds.push(("y_row_bytes", ArgKind::RowStrideBytes(Operand::C)));
    }
    let place = match spec.epilogue().normalises() {
        true => ("y_scales", "y_scales_row_bytes"),
        false => ("c_scales", "c_scales_row_bytes"),
    };
    kinds.extend(row_scale_args(
        Operand::CScales,
        place,
        spec.epilogue().result_scales,
    ));
    kinds
}

/// Bytes of A, B, this rank's `c_rows` of C, and the operands of the epilogue.
pub(super) fn memory_bytes(spec: GemmSpec<'_>, c_rows: u64) -> u64 {
    let GemmShape { m, n, k } = spec.shape;
    let (epilogue, types) = (spec.epilogue(), spec.types());
    let matrices = u64::from(epilogue.residual) + u64::from(epilogue.normalises());
    let (of_bias, of_weight) = (u64::from(epilogue.bias), u64::from(epilogue.normalises()));
    let addends = (matrices * c_rows + of_weight) * n + of_bias * spec.cols_of_b();
    m * k * types.a.bytes()
        + k * spec.cols_of_b() * types.b.bytes()
        + addends * types.addend.bytes()
        + c_rows * n * spec.config.result_dtype().bytes()
        + c_rows * epilogue.result_scales.of_row(n) * Dtype::Fp32.bytes()
}
