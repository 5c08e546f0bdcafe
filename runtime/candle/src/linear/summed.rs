//! The operations of [`RowParallel`] on the whole sum, in the kernel of the product.

use super::RowParallel;
use crate::error::refuse;
use crate::factor::Factor;
use crate::matmul::dims_with_last;
use crate::operands::Input;
use candle_core::{Result, Tensor};
use mkernel::Operand;
use mkernel::spec::{Activation, Epilogue, Eps, GemmOp, Norm, Scales};

impl RowParallel {
    /// Computes the whole sum of `x [.., K]` with an activation: `[.., N]`, with equal bits on all ranks.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_activated(
        &self,
        x: impl Into<Factor>,
        activation: Activation,
    ) -> Result<Tensor> {
        let epilogue = Epilogue {
            activation,
            ..Epilogue::default()
        };
        let [y] = self.summed(&x.into(), epilogue, &[], [Operand::C])?;
        Ok(y)
    }

    /// Computes the whole sum of `x [.., K]` plus `residual [.., N]`: `[.., N]`, with equal bits on all ranks. All ranks pass
    /// the same residual, of the type of the weight, or bf16 if the weight is e4m3.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_residual(&self, x: impl Into<Factor>, residual: &Tensor) -> Result<Tensor> {
        let epilogue = Epilogue {
            residual: true,
            ..Epilogue::default()
        };
        let added = [(Operand::Residual, residual)];
        let [y] = self.summed(&x.into(), epilogue, &added, [Operand::C])?;
        Ok(y)
    }

    /// Computes the RMSNorm of the rows of the new residual, which is the whole sum of `x [.., K]` plus `residual [.., N]`, and the
    /// new residual. Both are `[.., N]`, with equal bits on all ranks. All ranks pass the same `residual` and the same `weight [N]`
    /// of the norm, of the type of the layer's weight, or bf16 if that is e4m3. This is for few rows on one node.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_rms_norm(
        &self,
        x: impl Into<Factor>,
        (residual, weight): (&Tensor, &Tensor),
        eps: f32,
    ) -> Result<(Tensor, Tensor)> {
        let added = [(Operand::Residual, residual), (Operand::Weight, weight)];
        let results = [Operand::C, Operand::ResidualOut];
        let epilogue = normalised(eps, Scales::None);
        let [y, residual_out] = self.summed(&x.into(), epilogue, &added, results)?;
        Ok((y, residual_out))
    }

    /// Computes [`forward_rms_norm`](Self::forward_rms_norm) with normalised rows of e4m3, which are the input of a layer whose weight
    /// has scales of the same kind: of rows or of blocks. N is a multiple of 16.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_rms_norm_e4m3(
        &self,
        x: impl Into<Factor>,
        (residual, weight): (&Tensor, &Tensor),
        (eps, scales): (f32, Scales),
    ) -> Result<(Factor, Tensor)> {
        let added = [(Operand::Residual, residual), (Operand::Weight, weight)];
        let results = [Operand::C, Operand::CScales, Operand::ResidualOut];
        let epilogue = normalised(eps, scales);
        let [y, of_rows, residual_out] = self.summed(&x.into(), epilogue, &added, results)?;
        Ok((Factor::scaled(y, of_rows)?, residual_out))
    }

    /// Calls `gemm_ar` with this epilogue, the bias, and the operands that the epilogue adds.
    fn summed<const R: usize>(
        &self,
        x: &Factor,
        epilogue: Epilogue,
        added: &[Input<'_>],
        results: [Operand; R],
    ) -> Result<[Tensor; R]> {
        let layer = &self.0;
        let rows = layer.count_rows(x)?;
        let n = layer.outputs()?;
        let dims = dims_with_last(x.elements(), n);
        for (operand, residual) in added {
            if *operand == Operand::Residual && residual.dims() != dims {
                refuse!(
                    "residual has the shape {:?}, but the sum has {dims:?}; pass the same shape",
                    residual.dims()
                );
            }
        }
        let mut config = layer.config(GemmOp::GemmAr)?;
        config.epilogue = Epilogue {
            bias: config.epilogue.bias,
            ..epilogue
        };
        let of_row = epilogue.result_scales.of_row(n as u64) as usize;
        let results = results.map(|operand| match operand {
            Operand::CScales => (operand, dims_with_last(x.elements(), of_row)),
            _ => (operand, dims.clone()),
        });
        layer.call(config, (x, rows), added, results)
    }
}

/// The epilogue that adds a residual and normalises rows.
fn normalised(eps: f32, result_scales: Scales) -> Epilogue {
    Epilogue {
        residual: true,
        norm: Norm::Rms,
        eps: Eps::new(eps),
        result_scales,
        ..Epilogue::default()
    }
}
