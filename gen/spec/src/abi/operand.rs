//! The tensors that the caller passes.

use super::extent::Extent;
use crate::config::Dtype;
use serde::Serialize;

/// A tensor that the caller passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Operand {
    /// This rank's rows of the left factor.
    A,
    /// This rank's right factor.
    B,
    /// The down projections of this rank's experts.
    Down,
    /// This rank's result.
    C,
    /// The scales of this rank's A.
    AScales,
    /// The scales of this rank's B.
    BScales,
    /// The scales of the down projections of this rank's experts.
    DownScales,
    /// The scales of this rank's C.
    CScales,
    /// The bias that is added to each row of the sum: a matrix of one row.
    Bias,
    /// The residual that is added to C last, or before a norm.
    Residual,
    /// The weight of a norm, by which each row is multiplied: a matrix of one row.
    Weight,
    /// The input of a norm: the new residual.
    ResidualOut,
    /// This rank's rows of queries.
    Q,
    /// This rank's rows of keys.
    K,
    /// This rank's rows of values.
    V,
    /// This rank's rows of the output of attention.
    O,
    /// The logarithm of the sum of exponentials of each row of queries: `[B, H, S]`, dense.
    Lse,
    /// The first row of each packed sequence among the rows over all ranks, and the end of the last sequence, dense.
    CuSeqlens,
    /// The number of rows of K and V that each rank has before the rows of the call, `[world, B]`, dense.
    CachedRows,
    /// This rank's tokens, with room for the largest number of tokens.
    Tokens,
    /// The number of tokens: one element.
    NumTokens,
    /// The router's logits: a row for each token, a column for each expert.
    Logits,
    /// The bias of each expert, which is added to scores for the choice of experts.
    ScoreBias,
    /// The top-k experts of each token, `[tokens, top_k]`, dense; -1 is no choice.
    TopkIds,
    /// The first row of each expert among the rows of the rank, and the end of the last expert's rows, dense.
    ExpertOffsets,
    /// The row index of each (token, k), `[tokens, top_k]`, dense: row `i` of rank `r`'s C has the index `r · max_rows + i`. An
    /// entry without a choice is -1.
    RowIndices,
    /// Outputs of experts: rows in the order of the C that `row_indices` refer to.
    Rows,
    /// The router's weight of each (token, k), `[tokens, top_k]`, dense.
    TopkWeights,
    /// This rank's input of a collective: the whole tensor, or this rank's rows.
    X,
    /// This rank's output of a collective.
    Y,
    /// The scales of this rank's X.
    XScales,
    /// The scales of this rank's Y.
    YScales,
}

impl Operand {
    /// `a`, `b`, `c`, `bias`, `residual_out`, … : the variant's name in snake case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::Down => "down",
            Self::C => "c",
            Self::AScales => "a_scales",
            Self::BScales => "b_scales",
            Self::DownScales => "down_scales",
            Self::CScales => "c_scales",
            Self::Bias => "bias",
            Self::Residual => "residual",
            Self::Weight => "weight",
            Self::ResidualOut => "residual_out",
            Self::Q => "q",
            Self::K => "k",
            Self::V => "v",
            Self::O => "o",
            Self::Lse => "lse",
            Self::CuSeqlens => "cu_seqlens",
            Self::CachedRows => "cached_rows",
            Self::Tokens => "tokens",
            Self::NumTokens => "num_tokens",
            Self::Logits => "logits",
            Self::ScoreBias => "score_bias",
            Self::TopkIds => "topk_ids",
            Self::ExpertOffsets => "expert_offsets",
            Self::RowIndices => "row_indices",
            Self::Rows => "rows",
            Self::TopkWeights => "topk_weights",
            Self::X => "x",
            Self::Y => "y",
            Self::XScales => "x_scales",
            Self::YScales => "y_scales",
        }
    }

    /// Whether kernels write the operand rather than read it. Some operators write `row_indices`, `expert_offsets`, `topk_ids` and
    /// `topk_weights`, and others read these operands.
    #[must_use]
    pub const fn is_result(self) -> bool {
        matches!(
            self,
            Self::C
                | Self::CScales
                | Self::ResidualOut
                | Self::O
                | Self::Lse
                | Self::Y
                | Self::YScales
        )
    }
}

/// Shape and role of an operand: row-major, row stride at least `cols` elements and a multiple of `stride_step` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OperandSpec {
    /// The operand.
    pub operand: Operand,
    /// The number of rows.
    pub rows: Extent,
    /// The number of columns.
    pub cols: u64,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The unit of the row stride, in elements: at least 8 elements and 16 bytes for operands that TMA loads, and 1 for vectors.
    /// Row strides are multiples of this unit.
    pub stride_step: u64,
    /// The unit of the address, in bytes. The address of the first element is a multiple of this unit.
    pub align_bytes: u64,
    /// Whether the kernel writes the operand rather than reads it. A kernel writes the whole operand, or all rows of the call.
    pub written: bool,
    /// Whether the operand lies in symmetric memory, dense and at the same offset on all ranks.
    pub symmetric: bool,
    /// The input whose memory a result may share; `None` if there is no such input. Each element of the result then has the address
    /// of the corresponding element of the input; [`Extent::first_row_of`] gives the rows. Otherwise, no operand that the kernel
    /// writes may overlap another operand.
    pub in_place_of: Option<Operand>,
}

impl OperandSpec {
    /// A matrix that the kernel reads, or writes if it is a result.
    #[must_use]
    pub const fn new(operand: Operand, rows: Extent, cols: u64, dtype: Dtype) -> Self {
        Self {
            operand,
            rows,
            cols,
            dtype,
            stride_step: match (cols, dtype.stride_step()) {
                (1, _) => 1,
                (_, step) if step > 8 => step,
                _ => 8,
            },
            align_bytes: 16,
            written: operand.is_result(),
            symmetric: false,
            in_place_of: None,
        }
    }

    /// A dense vector.
    pub(crate) const fn vector(operand: Operand, elems: u64, dtype: Dtype) -> Self {
        Self::new(operand, Extent::Fixed(elems), 1, dtype)
    }

    /// The operand in a call with this number of rows. The number has no effect if calls do not give rows.
    #[must_use]
    pub const fn in_call(mut self, rows: u64) -> Self {
        self.rows = self.rows.in_call(rows);
        self
    }

    /// The operand, with any row stride. No TMA loads it.
    pub(crate) const fn of_any_stride(mut self) -> Self {
        self.stride_step = 1;
        self
    }

    /// The operand, at the address of any element. The kernel loads and stores the elements one by one.
    pub(crate) const fn at_any_element(mut self) -> Self {
        self.align_bytes = self.dtype.bytes();
        self
    }

    /// The operand, in symmetric memory if `symmetric`.
    pub(crate) const fn in_symmetric_memory(mut self, symmetric: bool) -> Self {
        self.symmetric = symmetric;
        self
    }

    /// The operand, which may have the memory of this input.
    pub(crate) const fn in_place_of(mut self, input: Operand) -> Self {
        self.in_place_of = Some(input);
        self
    }

    /// The operand as one that the kernel writes, whether or not kernels usually write it.
    pub(crate) const fn written(mut self) -> Self {
        self.written = true;
        self
    }
}
