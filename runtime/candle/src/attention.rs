//! Attention over a sequence that is divided among the ranks.

use crate::call::call;
use crate::error::refuse;
use crate::operands::{self, Output};
use crate::ranks::Ranks;
use candle_core::{DType, Result, Tensor};
use mkernel::Operand;
use mkernel::spec::{
    AttentionConfig, AttentionOp, AttentionShape, Dim, Dtype, Layout, Placement, Scale,
};

/// The options of [`ring_attention`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions {
    /// Whether a row attends to no later rows.
    pub causal: bool,
    /// The rows of the sequence that a rank has. With a mask, only [`Placement::Zigzag`] gives all ranks equal work.
    pub placement: Placement,
    /// Whether the logarithms of the sums of exponentials of the scores are returned too.
    pub lse: bool,
    /// The factor by which scores are multiplied before the softmax. The default is 1/√D.
    pub scale: Scale,
}

/// Exact attention over a sequence of `seq` rows that is divided among the ranks: context parallelism.
///
/// `q` is `[B, S, H, D]` and `k` and `v` are `[B, S, KV heads, D]`, where S is the number of this rank's rows. All three
/// are bf16, or all are f16. Groups of heads of Q share heads of K and V, so K and V need not be repeated. Returns the output, with
/// the shape and type of `q`, and with [`lse`](AttentionOptions::lse) the logarithms of the sums of exponentials of the scores,
/// `[B, H, S]` in f32.
///
/// Q, K and V cover the same rows of the sequence. The chapter on attention of the book says how to compute new rows over a cache
/// of keys.
///
/// # Errors
/// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
pub fn ring_attention(
    ranks: &Ranks,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    seq: usize,
    options: AttentionOptions,
) -> Result<(Tensor, Option<Tensor>)> {
    let (batch, rows, heads, head_dim) = q.dims4()?;
    let (_, _, kv_heads, _) = k.dims4()?;
    let own = options
        .placement
        .rows_of(ranks.world() as u32, ranks.rank() as u32, seq as u64);
    let own: u64 = own.iter().map(|rows| rows.end - rows.start).sum();
    if rows as u64 != own {
        refuse!(
            "q has the shape {:?}, but this rank has {own} of the {seq} rows of a sequence; pass these",
            q.dims()
        );
    }
    for (name, tensor) in [("k", k), ("v", v)] {
        let wanted = [batch, rows, kv_heads, head_dim];
        if tensor.dims() != wanted {
            refuse!(
                "{name} has the shape {:?}, but q has {:?}; q, k and v have the same rows, so {name} must be {wanted:?}. For \
                 new rows over a cache of keys, see \"New rows over cached rows\" in the chapter on attention of mkernel's \
                 book",
                tensor.dims(),
                q.dims()
            );
        }
    }
    let config = AttentionConfig {
        // Tensors of candle have the length of their call.
        seq: Dim::Static(seq as u64),
        dtype: operands::dtype("q", q, &Dtype::FACTORS)?,
        layout: Layout::Bshd,
        causal: options.causal,
        placement: options.placement,
        scale: options.scale,
        lse: options.lse,
        ..AttentionConfig::new(AttentionOp::RingAttention)
    };
    let shape = AttentionShape {
        batch: batch as u64,
        seq: seq as u64,
        heads: heads as u64,
        kv_heads: kv_heads as u64,
        head_dim: head_dim as u64,
    };
    let operator = ranks.operator(config, shape)?;
    let inputs = [(Operand::Q, q), (Operand::K, k), (Operand::V, v)];
    let o = Output::new(Operand::O, q.shape().clone(), q.dtype());
    if !options.lse {
        let [o] = call(ranks, &operator, &inputs, [o])?;
        return Ok((o, None));
    }
    let lse = Output::new(Operand::Lse, (batch, heads, rows), DType::F32);
    let [o, lse] = call(ranks, &operator, &inputs, [o, lse])?;
    Ok((o, Some(lse)))
}
