//! Linear layers whose weights are divided among the ranks. With one rank they are candle's own product.

mod summed;

use crate::call::call_with_rows;
use crate::called::Called;
use crate::error::refuse;
use crate::operands::{self, Input, Output};
use crate::ranks::Ranks;
use candle_core::{D, DType, Device, Module, Result, Tensor};
use mkernel::spec::{
    Activation, BLayout, Dim, Dtype, Epilogue, GemmConfig, GemmOp, GemmShape, Tuning,
};
use mkernel::{Operand, Operator};
use std::sync::Arc;

/// A linear layer whose outputs are divided among the ranks: the first layer of a block under tensor parallelism.
///
/// This rank has the rows of the weight that belong to its outputs: `[N, K]`, where N is the number of outputs of this
/// rank. There are four forms of the forward pass:
///
/// - [`forward`](Module::forward): all ranks have all of `x [.., K]`. Each rank computes its columns, `[.., N]`,
///   without communication, as Megatron, vLLM and mistral.rs do without sequence parallelism.
/// - [`forward_activated`](Self::forward_activated): `forward` and an activation, in one kernel.
/// - [`forward_swiglu`](Self::forward_swiglu): `forward` of a gate and an up projection, and SwiGLU, in one kernel.
/// - [`forward_gathered`](Self::forward_gathered): each rank has its rows of x. They are gathered while the rank computes
///   its columns for all rows. This is sequence parallelism.
#[derive(Clone, Debug)]
pub struct ColumnParallel {
    ranks: Ranks,
    weight: Tensor,
    bias: Option<Tensor>,
}

/// A linear layer whose inputs are divided among the ranks: the second layer of a block under tensor parallelism.
///
/// This rank has the columns of the weight that belong to its inputs: `[N, K]`, where K is the number of inputs of this
/// rank. The input is `x [.., K]`, with all rows. The ranks' products are added up, and the bias is added once. Forms of the forward
/// pass differ in the rows of the sum that a rank gets, and in what is applied to the sum in the same kernel:
///
/// - [`forward`](Module::forward): every rank gets the whole sum, `[.., N]`, with equal bits on all ranks.
/// - [`forward_activated`](Self::forward_activated), [`forward_residual`](Self::forward_residual) and
///   [`forward_rms_norm`](Self::forward_rms_norm): `forward` and an activation, a residual, or a residual and RMSNorm.
/// - [`forward_scattered`](Self::forward_scattered): each rank gets its rows. This is sequence parallelism.
#[derive(Clone, Debug)]
pub struct RowParallel {
    ranks: Ranks,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl ColumnParallel {
    /// Creates the layer from this rank's rows of the weight, `[N, K]`, and of the bias, `[N]`. Both are bf16 or f16.
    ///
    /// # Errors
    /// Fails if a shape or a type is wrong.
    pub fn new(ranks: &Ranks, weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        check_weight(ranks, &weight, bias.as_ref())?;
        let ranks = ranks.clone();
        Ok(Self {
            ranks,
            weight,
            bias,
        })
    }

    /// Creates the layer from the whole weight and bias, and copies this rank's rows to the device of `ranks`.
    ///
    /// # Errors
    /// Fails if the rows cannot be divided among the ranks, or if a shape or a type is wrong.
    pub fn shard(ranks: &Ranks, weight: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let weight = part(ranks, weight, 0, "the weight of a ColumnParallel")?;
        let bias = bias.map(|bias| part(ranks, bias, 0, "the bias of a ColumnParallel"));
        Self::new(ranks, weight, bias.transpose()?)
    }

    /// Returns this rank's rows of the weight.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Computes this rank's columns of the output of `x [.., K]` with an activation: `[.., N]`. Product, bias and activation
    /// are one kernel, and the result is rounded once.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_activated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        let mut config = config(GemmOp::Gemm, &self.weight, self.bias.is_some())?;
        config.epilogue.activation = activation;
        self.forward_finished(x, config)
    }

    /// Computes `silu(gate) · up` of `x [.., K]`: `[.., N/2]`. The first half of this rank's outputs is the gate, and the second
    /// half is up. Product, bias and SwiGLU are one kernel, and the result is rounded once.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_swiglu(&self, x: &Tensor) -> Result<Tensor> {
        let (n, _) = self.weight.dims2()?;
        let mut config = config(GemmOp::Gemm, &self.weight, self.bias.is_some())?;
        (config.n, config.epilogue.swiglu) = (Dim::Static(n as u64 / 2), true);
        self.forward_finished(x, config)
    }

    /// Computes C of `gemm` with the epilogue of this configuration.
    fn forward_finished(&self, x: &Tensor, config: GemmConfig) -> Result<Tensor> {
        let rows = count_rows(x, &self.weight)?;
        let n = config.n.fixed().unwrap_or_default() as usize;
        let operator = operator(&self.ranks, config, rows)?;
        let inputs = operands(x, &self.weight, self.bias.as_ref());
        let c = Output::new(Operand::C, (rows, n), self.weight.dtype());
        let y = call_with(&self.ranks, &operator, rows, &inputs, c)?;
        y.reshape(dims_with_last(x, n))
    }

    /// Computes this rank's columns of the output for the rows of all ranks: `[rows, N]`.
    ///
    /// `x` has this rank's rows, `[⌈rows / ranks⌉, K]`. The last ranks have fewer rows, or no rows. `rows` is the
    /// number of rows of all ranks.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_gathered(&self, x: &Tensor, rows: usize) -> Result<Tensor> {
        let own = count_rows(x, &self.weight)?;
        if self.ranks.world() == 1 && own == rows {
            return local(&x.reshape((rows, ()))?, &self.weight, self.bias.as_ref());
        }
        let (n, _) = self.weight.dims2()?;
        let config = config(GemmOp::AgGemm, &self.weight, self.bias.is_some())?;
        let operator = operator(&self.ranks, config, rows)?;
        let inputs = operands(x, &self.weight, self.bias.as_ref());
        let c = Output::new(Operand::C, (rows, n), self.weight.dtype());
        call_with(&self.ranks, &operator, rows, &inputs, c)
    }
}

impl Module for ColumnParallel {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        local(x, &self.weight, self.bias.as_ref())
    }
}

impl RowParallel {
    /// Creates the layer from this rank's columns of the weight, `[N, K]`, and the whole bias, `[N]`, which is equal on all ranks.
    /// Both are bf16 or f16.
    ///
    /// # Errors
    /// Fails if a shape or a type is wrong.
    pub fn new(ranks: &Ranks, weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        check_weight(ranks, &weight, bias.as_ref())?;
        let ranks = ranks.clone();
        Ok(Self {
            ranks,
            weight,
            bias,
        })
    }

    /// Creates the layer from the whole weight and the bias, and copies this rank's columns of the weight to the device of `ranks`.
    ///
    /// # Errors
    /// Fails if the columns cannot be divided among the ranks, or if a shape or a type is wrong.
    pub fn shard(ranks: &Ranks, weight: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let weight = part(ranks, weight, 1, "the weight of a RowParallel")?;
        let bias = bias.map(|bias| bias.to_device(ranks.device()));
        Self::new(ranks, weight, bias.transpose()?)
    }

    /// Returns this rank's columns of the weight.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Computes this rank's rows of the sum: `[⌈rows / ranks⌉, N]` of `x [.., K]` with `rows` rows. The last ranks have
    /// fewer rows, or no rows.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn forward_scattered(&self, x: &Tensor) -> Result<Tensor> {
        let rows = count_rows(x, &self.weight)?;
        let own = own_rows(&self.ranks, rows);
        self.reduce(GemmOp::GemmRs, x, (rows, own))
    }

    /// Calls an operator that reduces `rows` rows. This rank gets `results` rows.
    fn reduce(&self, op: GemmOp, x: &Tensor, (rows, results): (usize, usize)) -> Result<Tensor> {
        let (n, _) = self.weight.dims2()?;
        if self.ranks.world() == 1 {
            return local(&x.reshape((rows, ()))?, &self.weight, self.bias.as_ref());
        }
        let config = config(op, &self.weight, self.bias.is_some())?;
        let operator = operator(&self.ranks, config, rows)?;
        let inputs = operands(x, &self.weight, self.bias.as_ref());
        let c = Output::new(Operand::C, (results, n), self.weight.dtype());
        call_with(&self.ranks, &operator, rows, &inputs, c)
    }
}

impl Module for RowParallel {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let rows = count_rows(x, &self.weight)?;
        let y = self.reduce(GemmOp::GemmAr, x, (rows, rows))?;
        let cols = y.dim(1)?;
        y.reshape(dims_with_last(x, cols))
    }
}

/// Returns the dimensions of `x` with another last one.
fn dims_with_last(x: &Tensor, cols: usize) -> Vec<usize> {
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = cols;
    }
    dims
}

/// Returns how many of `rows` rows belong to this rank.
pub(crate) fn own_rows(ranks: &Ranks, rows: usize) -> usize {
    let shard = rows.div_ceil(ranks.world());
    shard.min(rows.saturating_sub(ranks.rank() * shard))
}

/// Computes `x [.., K] · w [N, K]ᵀ` on this rank alone: `[.., N]`, with the element type of x.
///
/// # Errors
/// Fails if the sizes do not fit.
pub fn matmul(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let (n, k) = w.dims2()?;
    let dims = dims_with_last(x, n);
    let x = x.reshape(((), k))?;
    let y = match x.device() {
        // candle multiplies no bf16 on the CPU. Products of 16-bit numbers are exact in f32.
        Device::Cpu => {
            let (wide, w) = (x.to_dtype(DType::F32)?, w.to_dtype(DType::F32)?);
            wide.matmul(&w.t()?)?.to_dtype(x.dtype())?
        }
        _ => x.matmul(&w.t()?)?,
    };
    y.reshape(dims)
}

/// Computes the output of a layer on this rank alone. One rank exchanges nothing, and for few rows the product of cuBLAS is
/// faster than a fused kernel.
fn local(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let y = matmul(x, weight)?;
    match bias {
        Some(bias) => y.broadcast_add(bias),
        None => Ok(y),
    }
}

/// Returns the number of rows of `x [.., K]`, whose K must equal the K of the weight.
fn count_rows(x: &Tensor, weight: &Tensor) -> Result<usize> {
    let (cols, k) = (x.dim(D::Minus1)?, weight.dim(1)?);
    if cols != k || k == 0 {
        refuse!("the input has {cols} columns, but the weight has {k}");
    }
    Ok(x.elem_count() / k)
}

fn check_weight(ranks: &Ranks, weight: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    let (n, _) = weight.dims2()?;
    for (name, tensor) in std::iter::once(("weight", weight)).chain(bias.map(|b| ("bias", b))) {
        operands::check(ranks, name, tensor)?;
        operands::dtype(name, tensor, &Dtype::FACTORS)?;
    }
    match bias {
        Some(bias) if bias.dims() != [n] => refuse!(
            "the bias has the shape {:?}, but the weight has {n} rows; the bias must be [{n}]",
            bias.dims()
        ),
        _ => Ok(()),
    }
}

/// Copies this rank's part of `whole` along a dimension to the device of `ranks`.
fn part(ranks: &Ranks, whole: &Tensor, dim: usize, name: &str) -> Result<Tensor> {
    let (size, world) = (whole.dim(dim)?, ranks.world());
    if !size.is_multiple_of(world) {
        refuse!(
            "{name} has {size} elements in dimension {dim}, which {world} ranks cannot share evenly; pad it to {}",
            size.next_multiple_of(world)
        );
    }
    let part = whole.narrow(dim, ranks.rank() * (size / world), size / world)?;
    // A copy, so that the whole tensor can be dropped.
    part.force_contiguous()?.to_device(ranks.device())
}

fn operands<'a>(x: &'a Tensor, weight: &'a Tensor, bias: Option<&'a Tensor>) -> Vec<Input<'a>> {
    let bias = bias.map(|bias| (Operand::Bias, bias));
    let matrices = [(Operand::A, x), (Operand::B, weight)];
    matrices.into_iter().chain(bias).collect()
}

fn config(op: GemmOp, weight: &Tensor, bias: bool) -> Result<GemmConfig> {
    let (n, k) = weight.dims2()?;
    Ok(GemmConfig {
        dtype: operands::dtype("weight", weight, &Dtype::FACTORS)?,
        n: Dim::Static(n as u64),
        k: Dim::Static(k as u64),
        b_layout: BLayout::Nk,
        epilogue: Epilogue {
            bias,
            ..Epilogue::default()
        },
        // An operator serves numbers of rows that are alike.
        tuning: Tuning {
            buckets: Some(1),
            ..Tuning::default()
        },
        ..GemmConfig::new(op)
    })
}

/// Returns an operator for this number of rows. One operator serves all numbers of rows up to a power of two, so operators are few.
fn operator(ranks: &Ranks, config: GemmConfig, rows: usize) -> Result<Arc<Operator>> {
    let size = |dim: Dim| dim.fixed().unwrap_or_default();
    let shape = GemmShape {
        m: rows.max(1).next_power_of_two() as u64,
        n: size(config.n),
        k: size(config.k),
    };
    ranks.operator(config, shape)
}

/// Calls an operator with this number of rows.
fn call_with(
    ranks: &Ranks,
    operator: &Operator,
    rows: usize,
    inputs: &[Input<'_>],
    output: Output,
) -> Result<Tensor> {
    let called = Called {
        operator,
        rows: Some(rows as u64),
    };
    let [y] = call_with_rows(ranks, called, inputs, [output])?;
    Ok(y)
}
