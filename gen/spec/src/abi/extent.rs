//! The rows of an operand.

use serde::Serialize;

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
