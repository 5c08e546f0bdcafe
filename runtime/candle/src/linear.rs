//! Linear layers whose weights are divided among the ranks. With one rank they are candle's own product.

mod layer;
mod summed;

use crate::factor::{self, Factor};
use crate::matmul::dims_with_last;
use crate::ranks::Ranks;
use candle_core::{Module, Result, Tensor};
use layer::Layer;
use mkernel::Operand;
use mkernel::spec::{Activation, Dim, GemmConfig, GemmOp, Scales};

/// A linear layer whose outputs are divided among the ranks: the first layer of a block under tensor parallelism.
///
/// This rank has the rows of the weight that belong to its outputs: `[N, K]`, where N is the number of outputs of this
/// rank. There are five forms of the forward pass:
///
/// - [`forward`](Module::forward): all ranks have all of `x [.., K]`. Each rank computes its columns, `[.., N]`,
///   without communication, as Megatron, vLLM and mistral.rs do without sequence parallelism.
/// - [`forward_activated`](Self::forward_activated): `forward` and an activation, in one kernel.
/// - [`forward_swiglu`](Self::forward_swiglu): `forward` of a gate and an up projection, and SwiGLU, in one kernel.
/// - [`forward_swiglu_e4m3`](Self::forward_swiglu_e4m3): the same in e4m3, with scales.
/// - [`forward_gathered`](Self::forward_gathered): each rank has its rows of x. They are gathered while the rank computes
///   its columns for all rows. This is sequence parallelism.
///
/// A weight of e4m3 has scales, and so has x: see [`Factor`]. [`forward_scaled`](Self::forward_scaled) then takes the place of `forward`,
/// results are bf16, and so is the bias.
#[derive(Clone, Debug)]
pub struct ColumnParallel(Layer);

/// A linear layer whose inputs are divided among the ranks: the second layer of a block under tensor parallelism.
///
/// This rank has the columns of the weight that belong to its inputs: `[N, K]`, where K is the number of inputs of this
/// rank. The input is `x [.., K]`, with all rows. The ranks' products are added up, and the bias is added once. Forms of the forward
/// pass differ in the rows of the sum that a rank gets, and in what is applied to the sum in the same kernel:
///
/// - [`forward`](Module::forward): every rank gets the whole sum, `[.., N]`, with equal bits on all ranks.
/// - [`forward_activated`](Self::forward_activated), [`forward_residual`](Self::forward_residual) and
///   [`forward_rms_norm`](Self::forward_rms_norm): `forward` and an activation, a residual, or a residual and RMSNorm.
///   [`forward_rms_norm_e4m3`](Self::forward_rms_norm_e4m3) returns e4m3 with scales.
/// - [`forward_scattered`](Self::forward_scattered): each rank gets its rows. This is sequence parallelism.
///
/// A weight of e4m3 has scales, and so has x: see [`Factor`]. Each rank has scales of its own.
/// [`forward_scaled`](Self::forward_scaled) then takes the place of `forward`, results are bf16, and so is the bias.
#[derive(Clone, Debug)]
pub struct RowParallel(Layer);

impl ColumnParallel {
    /// Creates the layer from this rank's rows of the weight, `[N, K]`, and of the bias, `[N]`. Both are bf16 or f16, or the weight is e4m3.
    ///
    /// # Errors
    /// Fails if a shape or a type is wrong.
    pub fn new(ranks: &Ranks, weight: impl Into<Factor>, bias: Option<Tensor>) -> Result<Self> {
        Layer::new(ranks, weight.into(), bias).map(Self)
    }

    /// Creates the layer from the whole weight and bias, and copies this rank's rows to the device of `ranks`.
    ///
    /// # Errors
    /// Fails if the rows cannot be divided among the ranks, or if a shape or a type is wrong.
    pub fn shard(ranks: &Ranks, weight: impl Into<Factor>, bias: Option<&Tensor>) -> Result<Self> {
        let weight: Factor = weight.into();
        let weight = weight.part(ranks, 0, "the weight of a ColumnParallel")?;
        let bias = bias.map(|bias| factor::part(ranks, bias, 0, "the bias of a ColumnParallel"));
        Self::new(ranks, weight, bias.transpose()?)
    }

    /// Returns this rank's rows of the weight.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// Computes this rank's columns of the output of a factor `[.., K]` of e4m3 by a weight of e4m3: `[.., N]`, as bf16. Product and bias
    /// are one kernel, `gemm`.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_scaled(&self, x: impl Into<Factor>) -> Result<Tensor> {
        let config = self.0.config(GemmOp::Gemm)?;
        self.forward_finished(x.into(), config)
    }

    /// Computes this rank's columns of the output of `x [.., K]` with an activation: `[.., N]`. Product, bias and activation
    /// are one kernel, and the result is rounded once.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_activated(
        &self,
        x: impl Into<Factor>,
        activation: Activation,
    ) -> Result<Tensor> {
        let mut config = self.0.config(GemmOp::Gemm)?;
        config.epilogue.activation = activation;
        self.forward_finished(x.into(), config)
    }

    /// Computes `silu(gate) · up` of `x [.., K]`: `[.., N/2]`. The first half of this rank's outputs is the gate, and the second
    /// half is up. Product, bias and SwiGLU are one kernel, and the result is rounded once. Scales of blocks of the second half
    /// begin where the half begins, so a weight of e4m3 may have `2 · ⌈N/2/128⌉` rows of scales.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_swiglu(&self, x: impl Into<Factor>) -> Result<Tensor> {
        let (config, _) = self.swiglu()?;
        self.forward_finished(x.into(), config)
    }

    /// Computes [`forward_swiglu`](Self::forward_swiglu) in e4m3, with a scale for each 128 elements of a row: the input of a
    /// [`RowParallel`] whose weight has scales of blocks. N/2 is a multiple of 16.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_swiglu_e4m3(&self, x: impl Into<Factor>) -> Result<Factor> {
        let ((mut config, n), x) = (self.swiglu()?, x.into());
        config.epilogue.result_scales = Scales::Block;
        let rows = self.0.count_rows(&x)?;
        let of_row = config.epilogue.result_scales.of_row(n as u64) as usize;
        let results = [(Operand::C, n), (Operand::CScales, of_row)];
        let results = results.map(|(operand, cols)| (operand, dims_with_last(x.elements(), cols)));
        let [y, scales] = self.0.call(config, (&x, rows), &[], results)?;
        Factor::scaled(y, scales)
    }

    /// Returns the configuration of SwiGLU, and its columns.
    fn swiglu(&self) -> Result<(GemmConfig, usize)> {
        let n = self.0.outputs()? / 2;
        let mut config = self.0.config(GemmOp::Gemm)?;
        (config.n, config.epilogue.swiglu) = (Dim::Static(n as u64), true);
        Ok((config, n))
    }

    /// Computes C of `gemm` with the epilogue of this configuration.
    fn forward_finished(&self, x: Factor, config: GemmConfig) -> Result<Tensor> {
        let rows = self.0.count_rows(&x)?;
        let n = config.n.fixed().unwrap_or_default() as usize;
        let c = [(Operand::C, dims_with_last(x.elements(), n))];
        let [y] = self.0.call(config, (&x, rows), &[], c)?;
        Ok(y)
    }

    /// Computes this rank's columns of the output for the rows of all ranks: `[rows, N]`.
    ///
    /// `x` has this rank's rows, `[⌈rows / ranks⌉, K]`. The last ranks have fewer rows, or no rows. `rows` is the
    /// number of rows of all ranks.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_gathered(&self, x: impl Into<Factor>, rows: usize) -> Result<Tensor> {
        let (layer, x) = (&self.0, x.into());
        let own = layer.count_rows(&x)?;
        if layer.is_local() && own == rows {
            return layer.local(&x.elements().reshape((rows, ()))?);
        }
        let (config, n) = (layer.config(GemmOp::AgGemm)?, layer.outputs()?);
        let [y] = layer.call(config, (&x, rows), &[], [(Operand::C, vec![rows, n])])?;
        Ok(y)
    }
}

impl Module for ColumnParallel {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.local(x)
    }
}

impl RowParallel {
    /// Creates the layer from this rank's columns of the weight, `[N, K]`, and the whole bias, `[N]`, which is equal on all ranks.
    /// Both are bf16 or f16, or the weight is e4m3.
    ///
    /// # Errors
    /// Fails if a shape or a type is wrong.
    pub fn new(ranks: &Ranks, weight: impl Into<Factor>, bias: Option<Tensor>) -> Result<Self> {
        Layer::new(ranks, weight.into(), bias).map(Self)
    }

    /// Creates the layer from the whole weight and the bias, and copies this rank's columns of the weight to the device of `ranks`.
    ///
    /// # Errors
    /// Fails if the columns cannot be divided among the ranks, or if a shape or a type is wrong.
    pub fn shard(ranks: &Ranks, weight: impl Into<Factor>, bias: Option<&Tensor>) -> Result<Self> {
        let weight: Factor = weight.into();
        let weight = weight.part(ranks, 1, "the weight of a RowParallel")?;
        let bias = bias.map(|bias| bias.to_device(ranks.device()));
        Self::new(ranks, weight, bias.transpose()?)
    }

    /// Returns this rank's columns of the weight.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// Computes the whole sum of a factor `[.., K]` of e4m3 by a weight of e4m3: `[.., N]`, as bf16, with equal bits on all ranks.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_scaled(&self, x: impl Into<Factor>) -> Result<Tensor> {
        self.whole(&x.into())
    }

    /// Computes this rank's rows of the sum: `[⌈rows / ranks⌉, N]` of `x [.., K]` with `rows` rows. The last ranks have
    /// fewer rows, or no rows.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_scattered(&self, x: impl Into<Factor>) -> Result<Tensor> {
        let x = x.into();
        let rows = self.0.count_rows(&x)?;
        self.reduce(GemmOp::GemmRs, &x, (rows, own_rows(&self.0.ranks, rows)))
    }

    fn whole(&self, x: &Factor) -> Result<Tensor> {
        let rows = self.0.count_rows(x)?;
        let y = self.reduce(GemmOp::GemmAr, x, (rows, rows))?;
        y.reshape(dims_with_last(x.elements(), self.0.outputs()?))
    }

    /// Calls an operator that reduces `rows` rows. This rank gets `results` rows.
    fn reduce(&self, op: GemmOp, x: &Factor, (rows, results): (usize, usize)) -> Result<Tensor> {
        let layer = &self.0;
        if layer.is_local() {
            return layer.local(&x.elements().reshape((rows, ()))?);
        }
        let c = [(Operand::C, vec![results, layer.outputs()?])];
        let [y] = layer.call(layer.config(op)?, (x, rows), &[], c)?;
        Ok(y)
    }
}

impl Module for RowParallel {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.whole(&x.into())
    }
}

/// Returns how many of `rows` rows belong to this rank.
pub(crate) fn own_rows(ranks: &Ranks, rows: usize) -> usize {
    let shard = rows.div_ceil(ranks.world());
    shard.min(rows.saturating_sub(ranks.rank() * shard))
}
