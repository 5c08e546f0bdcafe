//! A layer of experts that are divided among the ranks.

use crate::call::call;
use crate::error::refuse;
use crate::matmul::matmul;
use crate::operands::{self, Output};
use crate::ranks::Ranks;
use candle_core::{D, DType, Result, Tensor};
use mkernel::spec::config::all_rows;
use mkernel::spec::{
    BLayout, CombineConfig, CombineOp, CombineShape, DispatchConfig, DispatchOp, DispatchShape,
    Dtype,
};
use mkernel::{Operand, Operator};
use std::sync::Arc;

/// The sizes of a layer of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsSizes {
    /// Experts over all ranks.
    pub experts: usize,
    /// Experts of each token.
    pub top_k: usize,
    /// The most tokens that a rank can have.
    pub max_tokens: usize,
    /// The most rows that the experts of a rank can get. `None` allows the most rows that the tokens of all ranks can
    /// make.
    pub max_rows: Option<u32>,
}

/// The first linear layer of the experts of this rank, and the way of the tokens to them and back.
///
/// Rank r of W has the experts r·E/W and following, of E experts.
#[derive(Clone, Debug)]
pub struct Experts {
    ranks: Ranks,
    sizes: ExpertsSizes,
    weight: Tensor,
    swiglu: bool,
}

/// The outputs of this rank's experts for the tokens of all ranks.
#[derive(Clone, Debug)]
pub struct Dispatched {
    /// `[max_rows, I]`: the rows, grouped by expert. Rows beyond the last one have no defined content.
    pub rows: Tensor,
    /// `[E/W + 1]`, i32: the first row of each expert, and the end of the last expert's rows.
    pub expert_offsets: Tensor,
    /// `[max_tokens, top_k]`, i32: the row index of each (token, k), for [`Experts::combine`].
    pub row_indices: Tensor,
    tokens: usize,
    num_tokens: Tensor,
}

impl Experts {
    /// Creates the layer from the weights of this rank's experts, bf16 or f16 `[E/W, columns, H]`. With `swiglu`, the first
    /// half of the columns is the gate projection and the second half the up projection, and the result is
    /// `silu(gate) · up`.
    ///
    /// # Errors
    /// Fails if the weights are of another number of experts or another type.
    pub fn new(ranks: &Ranks, sizes: ExpertsSizes, weight: Tensor, swiglu: bool) -> Result<Self> {
        operands::check(ranks, "the weight of Experts", &weight)?;
        let (local, _, _) = weight.dims3()?;
        if local * ranks.world() != sizes.experts {
            refuse!(
                "the weight has {local} experts on this rank; {} experts on {} ranks are {} for each",
                sizes.experts,
                ranks.world(),
                sizes.experts as f64 / ranks.world() as f64
            );
        }
        let ranks = ranks.clone();
        Ok(Self {
            ranks,
            sizes,
            weight,
            swiglu,
        })
    }

    /// Returns the most rows that this rank's experts can get.
    #[must_use]
    pub fn max_rows(&self) -> usize {
        let ExpertsSizes {
            experts,
            top_k,
            max_tokens,
            max_rows,
        } = self.sizes;
        let world = self.ranks.communicator().world();
        let all = all_rows(world, experts as u64, top_k as u64, max_tokens as u64) as usize;
        max_rows.map_or(all, |rows| rows as usize)
    }

    /// Sends tokens to their experts, and multiplies them by the experts' weights.
    ///
    /// `tokens` are `[T, H]` of the type of the weights, with one row for each token of this rank, at most `max_tokens`.
    /// `topk_ids` are i32 or u32 `[T, top_k]`: the experts of each token, without duplicates. The id -1, or `u32::MAX`, is
    /// a choice that the token does not have, and makes no row. The ids of candle's `arg_sort_last_dim` are u32.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called. Experts that do not exist are an
    /// error of the next [`Ranks::synchronize`], which affects only this call.
    pub fn dispatch(&self, tokens: &Tensor, topk_ids: &Tensor) -> Result<Dispatched> {
        let ExpertsSizes {
            experts,
            top_k,
            max_tokens,
            ..
        } = self.sizes;
        let intermediate = self.intermediate()?;
        let operator = self.operator(DispatchOp::DispatchGemm)?;
        let count = tokens.dim(0)?;
        let num_tokens = Tensor::new(&[count as i32], self.ranks.device())?;
        let (tokens, ids) = (self.pad(tokens)?, self.ids(topk_ids)?);
        let inputs = [
            (Operand::Tokens, &tokens),
            (Operand::NumTokens, &num_tokens),
            (Operand::TopkIds, &ids),
            (Operand::B, &self.weight),
        ];
        let outputs = [
            Output::new(
                Operand::C,
                (self.max_rows(), intermediate),
                self.weight.dtype(),
            ),
            Output::new(
                Operand::ExpertOffsets,
                experts / self.ranks.world() + 1,
                DType::I32,
            ),
            Output::new(Operand::RowIndices, (max_tokens, top_k), DType::I32),
        ];
        let [rows, expert_offsets, row_indices] = call(&self.ranks, &operator, &inputs, outputs)?;
        Ok(Dispatched {
            rows,
            expert_offsets,
            row_indices,
            tokens: count,
            num_tokens,
        })
    }

    /// Applies the whole layer in one launch: `down(silu(gate) · up)` of each token's experts, summed with the router's weights.
    /// The layer has been created with `swiglu`, and all ranks are on one node.
    ///
    /// `tokens` and `topk_ids` are as for [`Self::dispatch`], `topk_weights` are f32 `[T, top_k]`, and `down` is of the type of
    /// the weights, `[E/W, H, I]`. Returns `[T, H]`. A token without any choice gets zeros.
    ///
    /// # Errors
    /// The errors of [`Self::dispatch`].
    pub fn layer(
        &self,
        tokens: &Tensor,
        topk_ids: &Tensor,
        topk_weights: &Tensor,
        down: &Tensor,
    ) -> Result<Tensor> {
        operands::check(&self.ranks, "the down projection of Experts", down)?;
        let operator = self.operator(DispatchOp::MoeLayer)?;
        let (count, hidden) = tokens.dims2()?;
        let num_tokens = Tensor::new(&[count as i32], self.ranks.device())?;
        let (tokens, ids) = (self.pad(tokens)?, self.ids(topk_ids)?);
        let weights = self.pad(topk_weights)?;
        let inputs = [
            (Operand::Tokens, &tokens),
            (Operand::NumTokens, &num_tokens),
            (Operand::TopkIds, &ids),
            (Operand::TopkWeights, &weights),
            (Operand::B, &self.weight),
            (Operand::Down, down),
        ];
        let c = Output::new(
            Operand::C,
            (self.sizes.max_tokens, hidden),
            self.weight.dtype(),
        );
        let [y] = call(&self.ranks, &operator, &inputs, [c])?;
        y.narrow(0, 0, count)
    }

    /// Multiplies the rows of [`Self::dispatch`] by the experts' down projections, and returns the results to their tokens: `[T, H]`,
    /// sums weighted by the router. All ranks are on one node.
    ///
    /// `topk_weights` are f32 `[T, top_k]`, and `down` is of the type of the weights, `[E/W, H, I]`. A token without any choice
    /// gets zeros.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn gemm_combine(
        &self,
        dispatched: &Dispatched,
        topk_weights: &Tensor,
        down: &Tensor,
    ) -> Result<Tensor> {
        operands::check(&self.ranks, "the down projection of Experts", down)?;
        let operator = self.operator(DispatchOp::GemmCombine)?;
        let (_, hidden, _) = down.dims3()?;
        let weights = self.pad(topk_weights)?;
        let inputs = [
            (Operand::A, &dispatched.rows),
            (Operand::ExpertOffsets, &dispatched.expert_offsets),
            (Operand::NumTokens, &dispatched.num_tokens),
            (Operand::RowIndices, &dispatched.row_indices),
            (Operand::TopkWeights, &weights),
            (Operand::B, down),
        ];
        let c = (self.sizes.max_tokens, hidden);
        let c = Output::new(Operand::C, c, self.weight.dtype());
        let [y] = call(&self.ranks, &operator, &inputs, [c])?;
        y.narrow(0, 0, dispatched.tokens)
    }

    /// Returns the columns of a row of an expert.
    fn intermediate(&self) -> Result<usize> {
        let (_, cols, _) = self.weight.dims3()?;
        Ok(if self.swiglu { cols / 2 } else { cols })
    }

    fn operator(&self, op: DispatchOp) -> Result<Arc<Operator>> {
        let config = DispatchConfig {
            dtype: operands::dtype("weight", &self.weight, &Dtype::FACTORS)?,
            b_layout: BLayout::Nk,
            swiglu: self.swiglu && op.dispatches(),
            max_rows: self.sizes.max_rows,
            ..DispatchConfig::new(op)
        };
        let (_, _, hidden) = self.weight.dims3()?;
        let shape = DispatchShape {
            experts: self.sizes.experts as u64,
            top_k: self.sizes.top_k as u64,
            max_tokens: self.sizes.max_tokens as u64,
            hidden: hidden as u64,
            intermediate: self.intermediate()? as u64,
        };
        self.ranks.operator(config, shape)
    }

    /// Returns the ids of experts as i32, for `max_tokens` tokens.
    fn ids(&self, topk_ids: &Tensor) -> Result<Tensor> {
        match topk_ids.dtype() {
            DType::U32 => self.pad(&topk_ids.to_dtype(DType::I32)?),
            _ => self.pad(topk_ids),
        }
    }

    /// Returns the outputs of the experts to their tokens: `[T, H]`, sums weighted by the router.
    ///
    /// `outputs` are bf16 or f16 `[max_rows, H]`, in the order of [`Dispatched::rows`]. `topk_weights` are f32 `[T, top_k]`.
    /// Weights of missing choices do not count. A token without any choice gets zeros.
    ///
    /// # Errors
    /// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
    pub fn combine(
        &self,
        outputs: &Tensor,
        dispatched: &Dispatched,
        topk_weights: &Tensor,
    ) -> Result<Tensor> {
        let ExpertsSizes {
            experts,
            top_k,
            max_tokens,
            max_rows,
        } = self.sizes;
        let hidden = outputs.dim(D::Minus1)?;
        let config = CombineConfig {
            dtype: operands::dtype("outputs", outputs, &Dtype::FACTORS)?,
            max_rows,
            ..CombineConfig::new(CombineOp::Combine)
        };
        let shape = CombineShape {
            experts: experts as u64,
            top_k: top_k as u64,
            max_tokens: max_tokens as u64,
            hidden: hidden as u64,
        };
        let operator = self.ranks.operator(config, shape)?;
        let weights = self.pad(topk_weights)?;
        let inputs = [
            (Operand::Rows, outputs),
            (Operand::NumTokens, &dispatched.num_tokens),
            (Operand::RowIndices, &dispatched.row_indices),
            (Operand::TopkWeights, &weights),
        ];
        let c = Output::new(Operand::C, (max_tokens, hidden), outputs.dtype());
        let [y] = call(&self.ranks, &operator, &inputs, [c])?;
        y.narrow(0, 0, dispatched.tokens)
    }

    /// Returns `[max_tokens, ..]` with these first rows.
    fn pad(&self, rows: &Tensor) -> Result<Tensor> {
        let (count, most) = (rows.dim(0)?, self.sizes.max_tokens);
        match most.checked_sub(count) {
            None => refuse!(
                "this rank has {count} tokens, and the layer takes at most max_tokens = {most}; raise it, or pass the \
                 tokens in parts"
            ),
            Some(0) => Ok(rows.clone()),
            Some(missing) => {
                let (_, cols) = rows.dims2()?;
                let zeros = Tensor::zeros((missing, cols), rows.dtype(), rows.device())?;
                Tensor::cat(&[rows, &zeros], 0)
            }
        }
    }
}

/// Multiplies the rows of each expert of this rank by its weight: `[max_rows, N]` of [`Dispatched::rows`] and `weights`
/// `[E/W, N, I]`. Other rows become 0.
///
/// This is the second linear layer of the experts, which needs no communication. [`Experts::layer`] includes it in one launch.
/// This function calls candle's product for each expert, and reads `expert_offsets` on the host. The function therefore waits
/// for the dispatch, and cannot be captured in a graph. A grouped GEMM that reads the offsets on the GPU is faster.
///
/// # Errors
/// Fails if the sizes do not fit, or if the dispatch has failed.
pub fn grouped_matmul(dispatched: &Dispatched, weights: &Tensor) -> Result<Tensor> {
    let rows = &dispatched.rows;
    let (_, n, _) = weights.dims3()?;
    let offsets = dispatched.expert_offsets.to_vec1::<i32>()?;
    let mut parts = Vec::new();
    for (expert, bounds) in offsets.windows(2).enumerate() {
        let (first, end) = (bounds[0] as usize, bounds[1] as usize);
        if first < end {
            let own = rows.narrow(0, first, end - first)?;
            parts.push(matmul(&own, &weights.get(expert)?)?);
        }
    }
    let used = offsets.last().map_or(0, |end| *end as usize);
    if used < rows.dim(0)? {
        let rest = (rows.dim(0)? - used, n);
        parts.push(Tensor::zeros(rest, rows.dtype(), rows.device())?);
    }
    Tensor::cat(&parts, 0)
}
