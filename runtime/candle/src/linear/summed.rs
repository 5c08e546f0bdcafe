//! The operations of [`RowParallel`] on the whole sum, in the kernel of the product.

use super::{RowParallel, config, count_rows, dims_with_last, operands, operator};
use crate::call::call_with_rows;
use crate::called::Called;
use crate::error::refuse;
use crate::operands::{Input, Output};
use candle_core::{Result, Tensor};
use mkernel::Operand;
use mkernel::spec::{Activation, Epilogue, Eps, GemmOp, Norm};

impl RowParallel {
    /// Computes the whole sum of `x [.., K]` with an activation: `[.., N]`, with equal bits on all ranks.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_activated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        let epilogue = Epilogue {
            activation,
            ..Epilogue::default()
        };
        let [y] = self.summed(x, epilogue, &[], [Operand::C])?;
        Ok(y)
    }

    /// Computes the whole sum of `x [.., K]` plus `residual [.., N]`: `[.., N]`, with equal bits on all ranks. All ranks pass
    /// the same residual, of the type of the weight.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let epilogue = Epilogue {
            residual: true,
            ..Epilogue::default()
        };
        let added = [(Operand::Residual, residual)];
        let [y] = self.summed(x, epilogue, &added, [Operand::C])?;
        Ok(y)
    }

    /// Computes the RMSNorm of the rows of the new residual, which is the whole sum of `x [.., K]` plus `residual [.., N]`, and the
    /// new residual. Both are `[.., N]`, with equal bits on all ranks. All ranks pass the same `residual` and the same `weight [N]`
    /// of the norm, of the type of the layer's weight. This is for few rows on one node.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_rms_norm(
        &self,
        x: &Tensor,
        (residual, weight): (&Tensor, &Tensor),
        eps: f32,
    ) -> Result<(Tensor, Tensor)> {
        let epilogue = Epilogue {
            residual: true,
            norm: Norm::Rms,
            eps: Eps::new(eps),
            ..Epilogue::default()
        };
        let added = [(Operand::Residual, residual), (Operand::Weight, weight)];
        let results = [Operand::C, Operand::ResidualOut];
        let [y, residual_out] = self.summed(x, epilogue, &added, results)?;
        Ok((y, residual_out))
    }

    /// Calls `gemm_ar` with this epilogue, the bias, and the operands that the epilogue adds.
    fn summed<const R: usize>(
        &self,
        x: &Tensor,
        epilogue: Epilogue,
        added: &[Input<'_>],
        results: [Operand; R],
    ) -> Result<[Tensor; R]> {
        let (rows, (n, _)) = (count_rows(x, &self.weight)?, self.weight.dims2()?);
        let dims = dims_with_last(x, n);
        for (operand, residual) in added {
            if *operand == Operand::Residual && residual.dims() != dims {
                refuse!(
                    "residual has the shape {:?}, but the sum has {dims:?}; pass the same shape",
                    residual.dims()
                );
            }
        }
        let mut config = config(GemmOp::GemmAr, &self.weight, self.bias.is_some())?;
        config.epilogue = Epilogue {
            bias: self.bias.is_some(),
            ..epilogue
        };
        let operator = operator(&self.ranks, config, rows)?;
        let mut inputs = operands(x, &self.weight, self.bias.as_ref());
        inputs.extend_from_slice(added);
        let dtype = self.weight.dtype();
        let outputs = results.map(|operand| Output::new(operand, dims.clone(), dtype));
        let called = Called {
            operator: &operator,
            rows: Some(rows as u64),
        };
        call_with_rows(&self.ranks, called, &inputs, outputs)
    }
}
