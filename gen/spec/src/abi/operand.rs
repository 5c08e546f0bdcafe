//! The tensors that the caller passes.

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
    /// The top-k experts of each token, `[tokens, top_k]`, dense; -1 is no choice.
    TopkIds,
    /// The first row of each expert in C, and the end of the last expert's rows, dense.
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
            Self::TopkIds => "topk_ids",
            Self::ExpertOffsets => "expert_offsets",
            Self::RowIndices => "row_indices",
            Self::Rows => "rows",
            Self::TopkWeights => "topk_weights",
            Self::X => "x",
            Self::Y => "y",
            Self::YScales => "y_scales",
        }
    }

    /// Whether kernels write the operand rather than read it. `row_indices` are written by one operator and read by another.
    #[must_use]
    pub const fn is_result(self) -> bool {
        matches!(
            self,
            Self::C
                | Self::ResidualOut
                | Self::O
                | Self::Lse
                | Self::ExpertOffsets
                | Self::Y
                | Self::YScales
        )
    }
}

/// A size that is the same on every rank, or the rows of this rank's shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// A size that is the same on every rank.
    Fixed(u64),
    /// Rows `rank·per_rank ..` of `total`, at most `per_rank`, perhaps none.
    ShardRows {
        /// Rows over all ranks.
        total: u64,
        /// Rows of a full shard.
        per_rank: u64,
    },
    /// Rows that each call gives.
    Rows {
        /// The largest number of rows.
        most: u64,
    },
    /// A size on one rank, and 0 on all other ranks.
    OneRank {
        /// The size.
        size: u64,
        /// The rank.
        rank: u32,
    },
    /// Rows on one rank, if each call gives the rows, and no rows on all other ranks.
    RowsOfOneRank {
        /// The largest number of rows.
        most: u64,
        /// The rank.
        rank: u32,
    },
    /// The rows of a rank's shard, if each call gives the rows: ⌈rows/ranks⌉, or fewer on the last ranks.
    RowsOfShard {
        /// The largest number of rows over all ranks.
        most: u64,
        /// The number of ranks.
        ranks: u64,
    },
    /// The rows of a rank's chunks, as in [`Extent::Chunks`], if each call gives the rows: `chunks` chunks of ⌈rows/chunks⌉
    /// rows, perhaps fewer in the last chunks.
    RowsOfChunks {
        /// The largest number of rows over all ranks.
        most: u64,
        /// Chunks over all ranks.
        chunks: u64,
        /// The `mirror` of [`Extent::Chunks`].
        mirror: Option<u64>,
        /// The number of repetitions of these rows.
        times: u64,
    },
    /// Rows of chunk `rank` of `total` and, if each rank has two chunks, of chunk `mirror - rank`. These rows are repeated `times`
    /// times.
    Chunks {
        /// Rows over all ranks.
        total: u64,
        /// Rows of a chunk, perhaps fewer in the last chunks.
        per_chunk: u64,
        /// The index of the last chunk if each rank has two chunks. The second chunk is as far from the last chunk as the first
        /// chunk is from chunk 0.
        mirror: Option<u64>,
        /// The number of repetitions of these rows.
        times: u64,
    },
}

impl Extent {
    /// The row of this extent that is the first row of `part` on `rank`: 0 if both extents are the same rows, and the number of
    /// rows before the rank's shard if `part` is that shard. `None` if the extents are not rows of one tensor, or if a word of
    /// device memory has the number of rows, so that only the kernel knows the number.
    #[must_use]
    pub fn first_row_of(self, part: Self, rank: u32) -> Option<u64> {
        match (self, part) {
            (whole, part) if whole == part => Some(0),
            (Self::Fixed(whole), Self::ShardRows { total, per_rank }) if whole == total => {
                Some(u64::from(rank) * per_rank)
            }
            (Self::Fixed(whole), Self::OneRank { size, .. }) if whole == size => Some(0),
            (Self::Rows { most: whole }, Self::RowsOfOneRank { most, .. }) if whole == most => {
                Some(0)
            }
            _ => None,
        }
    }

    /// The extent in a call with this number of rows.
    #[must_use]
    pub const fn in_call(self, rows: u64) -> Self {
        match self {
            Self::Rows { .. } => Self::Fixed(rows),
            Self::RowsOfOneRank { rank, .. } => Self::OneRank { size: rows, rank },
            Self::RowsOfShard { ranks, .. } => Self::ShardRows {
                total: rows,
                per_rank: rows.div_ceil(ranks),
            },
            Self::RowsOfChunks {
                chunks,
                mirror,
                times,
                ..
            } => Self::Chunks {
                total: rows,
                per_chunk: rows.div_ceil(chunks),
                mirror,
                times,
            },
            _ => self,
        }
    }

    /// The size on `rank`, or the largest size of a call.
    #[must_use]
    pub fn on(self, rank: u32) -> u64 {
        match self {
            Self::Fixed(size) | Self::Rows { most: size } => size,
            Self::OneRank { size, rank: only }
            | Self::RowsOfOneRank {
                most: size,
                rank: only,
            } => {
                if rank == only {
                    size
                } else {
                    0
                }
            }
            // With fewer rows, the last ranks may have more rows than they have now.
            Self::RowsOfShard { most, ranks } => most.div_ceil(ranks),
            Self::RowsOfChunks {
                most,
                chunks,
                mirror,
                times,
            } => most.div_ceil(chunks) * (1 + u64::from(mirror.is_some())) * times,
            Self::ShardRows { total, per_rank } => total
                .saturating_sub(u64::from(rank) * per_rank)
                .min(per_rank),
            Self::Chunks {
                total,
                per_chunk,
                mirror,
                times,
            } => {
                let rows = |chunk: u64| total.saturating_sub(chunk * per_chunk).min(per_chunk);
                let first = u64::from(rank);
                (rows(first) + mirror.map_or(0, |last| rows(last - first))) * times
            }
        }
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
    pub(crate) const fn new(operand: Operand, rows: Extent, cols: u64, dtype: Dtype) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_begins_behind_the_shards_of_earlier_ranks() {
        let shard = |total| Extent::ShardRows { total, per_rank: 4 };
        let whole = Extent::Fixed(10);
        assert_eq!(whole.first_row_of(whole, 2), Some(0));
        assert_eq!(whole.first_row_of(shard(10), 2), Some(8));
        assert_eq!(whole.first_row_of(shard(11), 2), None);
        assert_eq!(shard(10).first_row_of(whole, 2), None);
        // Extents whose rows each call gives.
        let (all, ours) = (
            Extent::Rows { most: 30 },
            Extent::RowsOfShard { most: 30, ranks: 4 },
        );
        assert_eq!(all.first_row_of(all, 1), Some(0));
        assert_eq!(all.first_row_of(ours, 1), None);
        assert_eq!(all.in_call(9).first_row_of(ours.in_call(9), 1), Some(3));
        // An extent of one rank, which has all rows of the tensor.
        let of_root = Extent::RowsOfOneRank { most: 30, rank: 2 };
        assert_eq!([1, 2].map(|rank| of_root.in_call(9).on(rank)), [0, 9]);
        assert_eq!(all.first_row_of(of_root, 2), Some(0));
        assert_eq!(all.in_call(9).first_row_of(of_root.in_call(9), 2), Some(0));
    }

    /// With fewer rows, another rank may have the largest number of rows.
    #[test]
    fn a_call_has_chunks_of_its_own_rows() {
        let rows = Extent::RowsOfChunks {
            most: 30,
            chunks: 8,
            mirror: Some(7),
            times: 2,
        };
        let on_ranks = |extent: Extent| [0, 1, 2, 3].map(|rank| extent.on(rank));
        assert_eq!(on_ranks(rows), [16; 4]);
        assert_eq!(on_ranks(rows.in_call(30)), [12, 16, 16, 16]);
        assert_eq!(on_ranks(rows.in_call(5)), [2, 2, 2, 4]);
        assert_eq!(on_ranks(rows.in_call(1)), [2, 0, 0, 0]);
        assert_eq!(on_ranks(rows.in_call(0)), [0; 4]);
    }
}
