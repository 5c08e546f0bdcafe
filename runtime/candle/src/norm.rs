//! `all_reduce` with a residual and a norm.

use crate::collective::{FLAT_COLUMNS, run};
use crate::error::refuse;
use crate::factor::Factor;
use crate::operands::{Input, Output};
use crate::ranks::Ranks;
use candle_core::{DType, Result, Tensor};
use mkernel::Operand;
use mkernel::spec::plan::SCALE_BLOCK;
use mkernel::spec::{CollectiveConfig, CollectiveOp, Eps, Norm, Scales, SumEpilogue};

/// Returns the RMSNorm of the rows of the new residual, which is the sum of all ranks' `x` plus `residual`, and the new
/// residual. Every rank gets both results, with equal bits on all ranks. A block of a transformer passes both to the next
/// block. All ranks pass the same `residual`, of the shape of `x`, and the same `weight`, which has an element for each column.
/// Elements are bf16, f16 or f32, and the last dimension is a multiple of 8.
///
/// # Errors
/// Fails if shapes or types are wrong, or if the operator cannot be prepared or called.
pub fn all_reduce_rms_norm(
    ranks: &Ranks,
    x: &Tensor,
    (residual, weight): (&Tensor, &Tensor),
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    let results = [Operand::Y, Operand::ResidualOut];
    let results = results.map(|operand| Output::new(operand, x.shape().clone(), x.dtype()));
    let [y, residual_out] = normalised(ranks, x, (residual, weight), (eps, Scales::None), results)?;
    Ok((y, residual_out))
}

/// Returns the results of [`all_reduce_rms_norm`], with the RMSNorm quantised to e4m3 in the same kernel.
///
/// `scales` determines the elements of a row that share a scale: [`Scales::Row`] all, and [`Scales::Block`] 128. A layer whose weight
/// has such scales takes the factor as its input. The last dimension of `x` is a multiple of 16.
///
/// # Errors
/// Fails if shapes, types or `scales` are wrong, or if the operator cannot be prepared or called.
pub fn all_reduce_rms_norm_e4m3(
    ranks: &Ranks,
    x: &Tensor,
    (residual, weight): (&Tensor, &Tensor),
    (eps, scales): (f32, Scales),
) -> Result<(Factor, Tensor)> {
    let mut of_scales = x.dims().to_vec();
    if let Some(cols) = of_scales.last_mut() {
        *cols = match scales {
            Scales::Block => cols.div_ceil(SCALE_BLOCK as usize),
            Scales::Row => 1,
            scales => refuse!(
                "rows cannot be quantised with scales of {}; use Scales::Row or Scales::Block",
                scales.name()
            ),
        };
    }
    let results = [
        Output::new(Operand::Y, x.shape().clone(), DType::F8E4M3),
        Output::new(Operand::YScales, of_scales, DType::F32),
        Output::new(Operand::ResidualOut, x.shape().clone(), x.dtype()),
    ];
    let [y, y_scales, residual_out] =
        normalised(ranks, x, (residual, weight), (eps, scales), results)?;
    Ok((Factor::scaled(y, y_scales)?, residual_out))
}

fn normalised<const N: usize>(
    ranks: &Ranks,
    x: &Tensor,
    (residual, weight): (&Tensor, &Tensor),
    (eps, result_scales): (f32, Scales),
    results: [Output; N],
) -> Result<[Tensor; N]> {
    let cols = match x.dims().last() {
        Some(cols) if cols.is_multiple_of(FLAT_COLUMNS) && *cols > 0 => *cols,
        _ => refuse!(
            "all_reduce_rms_norm takes rows whose length is a multiple of {FLAT_COLUMNS}, but x has the shape {:?}; pad it",
            x.dims()
        ),
    };
    if residual.dims() != x.dims() {
        refuse!(
            "residual has the shape {:?}, but x has {:?}; pass the same shape",
            residual.dims(),
            x.dims()
        );
    }
    let epilogue = SumEpilogue {
        residual: true,
        norm: Norm::Rms,
        eps: Eps::new(eps),
        result_scales,
        ..SumEpilogue::default()
    };
    let config = CollectiveConfig {
        epilogue,
        ..CollectiveConfig::new(CollectiveOp::AllReduce)
    };
    let inputs: [Input<'_>; 3] = [
        (Operand::X, x),
        (Operand::Residual, residual),
        (Operand::Weight, weight),
    ];
    let size = (x.elem_count() / cols, cols);
    run(ranks, config, &inputs, size, results)
}
