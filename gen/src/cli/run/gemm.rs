//! Inputs and references of GEMM operators.

use super::collective::normalised;
use super::inputs::Inputs;
use super::quantised::Quantised;
use super::reference::{Addends, Matrix, multiply, scaled};
use mkernel::Operand;
use mkernel::spec::plan::GemmPlan;
use mkernel::{
    KernelPlan,
    spec::{BLayout, Dtype, GemmConfig, GemmOp, Scales},
};
use std::borrow::Cow;

/// Whether all ranks pass the same elements of `operand`. A rank that reduces a part of C adds its own bias and
/// residual.
fn is_common(config: &GemmConfig, operand: Operand) -> bool {
    match operand {
        Operand::Bias => config.op.reduces(),
        Operand::Weight => true,
        // With scales of tensors, all ranks have one scale of A.
        Operand::AScales => config.op == GemmOp::AgGemm && config.scales == Scales::Tensor,
        Operand::Residual => config.op == GemmOp::GemmAr,
        _ => false,
    }
}

/// Random operands.
pub fn inputs(plan: &KernelPlan, op_plan: &GemmPlan, seed: u64, call: u32) -> Inputs {
    Inputs::random(plan, seed, call, |operand| {
        is_common(&op_plan.config, operand)
    })
}

/// The expected C of `rank`, in fp32, with a norm the new residual, and with scales the scales of C.
pub fn expected(
    plan: &KernelPlan,
    op_plan: &GemmPlan,
    inputs: &Inputs,
    rank: u32,
    threads: usize,
) -> Option<Vec<Matrix>> {
    let GemmPlan { config, shape, .. } = op_plan;
    let (n, k) = (shape.n as usize, shape.k as usize);
    let n = n * config.epilogue.weight_cols() as usize;
    let b_is_transposed = config.b_layout == BLayout::Nk;
    let product = |a: &[f32], b: &[f32]| {
        multiply(a, b, b_is_transposed, (n, k), threads).of_factors(config.dtype)
    };
    let [of_a, of_b] = shares(config.scales);
    let a = factors(inputs, (Operand::A, Operand::AScales), k, of_a, 1);
    let b = (Operand::B, Operand::BScales);
    let b = factors(inputs, b, k, of_b, parts_of_b(config));
    let parts = || a.iter().zip(&b).map(|(a, b)| product(a, b)).collect();
    let sum = || Matrix::sum(parts(), plan.spec.topology(), op_plan.types().partial);
    let sum = match config.op {
        GemmOp::AgGemm => product(&a.concat(), &b[rank as usize]),
        GemmOp::GemmRs => {
            let elems = |rank| inputs.elems(Operand::C, rank);
            let before: usize = (0..rank).map(elems).sum();
            sum()?.part(before..before + elems(rank))
        }
        GemmOp::GemmAr => sum()?,
        GemmOp::Gemm => product(&a[rank as usize], &b[rank as usize]),
    };
    let of_rank = |operand| {
        inputs
            .of(operand)
            .get(rank as usize)
            .map_or(&[][..], |all| all)
    };
    let addends = Addends {
        bias: of_rank(Operand::Bias),
        residual: of_rank(Operand::Residual),
    };
    let (sum, addends) = match config.epilogue.swiglu {
        true => (
            sum.swiglu(addends.bias),
            Addends {
                bias: &[],
                ..addends
            },
        ),
        false => (sum, addends),
    };
    let c = match config.epilogue.quantises_sums() {
        true => Dtype::Fp32, // which is not rounded before it becomes e4m3
        false => op_plan.types().c,
    };
    let c = sum.finish(config.epilogue, addends, c);
    if let (false, Some(share)) = (
        config.epilogue.normalises(),
        config.epilogue.result_scales.shared_by(shape.n),
    ) {
        let Quantised { elements, scales } = Quantised::of(&c, share as usize);
        return Some(vec![elements, scales]);
    }
    if !config.epilogue.normalises() {
        return Some(vec![c]);
    }
    let y = c.rms_norm(of_rank(Operand::Weight), config.epilogue.eps.value());
    Some(normalised(y, c, config.epilogue.result_scales))
}

/// The numbers of rows and of columns of A, and of B, that share a scale. `None` if there are no scales.
pub(super) fn shares(scales: Scales) -> [Option<(usize, usize)>; 2] {
    match scales {
        Scales::None => [None; 2],
        Scales::Tensor => [Some((usize::MAX, usize::MAX)); 2],
        Scales::Row => [Some((1, usize::MAX)); 2],
        Scales::Block => [Some((1, 128)), Some((128, 128))],
    }
}

/// The number of parts of B that have scales of their own. Blocks of up begin where up does.
fn parts_of_b(config: &GemmConfig) -> usize {
    match config.scales {
        Scales::Block => config.epilogue.weight_cols() as usize,
        _ => 1,
    }
}

/// The elements of an operand times their scales, on each rank. Rows have `cols` elements. Each of so many parts of the rows has
/// its own scales.
pub(super) fn factors(
    inputs: &Inputs,
    (operand, scales): (Operand, Operand),
    cols: usize,
    share: Option<(usize, usize)>,
    parts: usize,
) -> Vec<Cow<'_, [f32]>> {
    let elements = inputs.of(operand).iter();
    match share {
        None => elements
            .map(|of_rank| Cow::Borrowed(&of_rank[..]))
            .collect(),
        Some(share) => elements
            .zip(inputs.of(scales))
            .map(|(of_rank, scales)| {
                let [rows, scales] =
                    [of_rank, scales].map(|all| all.chunks((all.len() / parts).max(1)));
                let of_part = |(rows, scales)| scaled(rows, cols, share, scales);
                Cow::Owned(rows.zip(scales).flat_map(of_part).collect())
            })
            .collect(),
    }
}

/// Bytes that the references of all ranks need at the same time for an operator that adds up: each rank computes the partial sums of all
/// ranks.
pub fn partial_sums_bytes(plan: &KernelPlan, op_plan: &GemmPlan) -> u64 {
    let world = u64::from(plan.spec.world());
    world * (world + 4) * op_plan.shape.m * op_plan.shape.n * Dtype::Fp32.bytes()
}
