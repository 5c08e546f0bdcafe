//! The placement of the rows of a sequence in the memory of a rank, and among the ranks.

use crate::options::option_type::choices;
use serde::{Deserialize, Serialize};
use std::ops::Range;

choices! {
    /// How Q, K, V and O lie in memory: B batches, S rows of the sequence, H heads, D elements.
    #[derive(Default)]
    pub enum Layout {
        /// `[B, S, H, D]`: rows of all heads, which may lie within longer rows.
        #[default]
        Bshd = "bshd",
        /// `[B, H, S, D]`
        Bhsd = "bhsd",
    }
}

choices! {
    /// The rows of the sequence that each of W ranks has.
    #[derive(Default)]
    pub enum Placement {
        /// Of W chunks of ⌈S/W⌉ rows, rank r has chunk r.
        #[default]
        Contiguous = "contiguous",
        /// Of 2W chunks of ⌈S/2W⌉ rows, rank r has chunk r and then chunk 2W - 1 - r: causal attention is then equal work
        /// for all ranks.
        Zigzag = "zigzag",
    }
}

impl Placement {
    /// The rows of a sequence that `rank` has, in their order: a range for each of the rank's chunks. A range may be empty.
    ///
    /// ```
    /// use mkernel_spec::Placement;
    ///
    /// // Four chunks of three rows. The last chunk has two rows.
    /// assert_eq!(Placement::Zigzag.rows_of(2, 0, 11), [0..3, 9..11]);
    /// assert_eq!(Placement::Zigzag.rows_of(2, 1, 11), [3..6, 6..9]);
    /// ```
    #[must_use]
    pub fn rows_of(self, world: u32, rank: u32, seq: u64) -> Vec<Range<u64>> {
        let per_chunk = seq.div_ceil(u64::from(world) * u64::from(self.segments()));
        let chunk = |segment| {
            let first = u64::from(self.chunk_of(world, rank, segment)) * per_chunk;
            first.min(seq)..(first + per_chunk).min(seq)
        };
        (0..self.segments()).map(chunk).collect()
    }

    /// The packed rows of sequences that `rank` has, in the order of its operands. Sequence `i` has rows `offsets[i]` up to, but
    /// without, `offsets[i + 1]`. A rank has its rows of the first sequence, as [`rows_of`](Self::rows_of) returns them, then its
    /// rows of the second sequence, and so on.
    ///
    /// ```
    /// use mkernel_spec::Placement;
    ///
    /// // Sequences of 4, 0 and 3 rows on two ranks.
    /// let offsets = [0, 4, 4, 7];
    /// assert_eq!(Placement::Contiguous.packed_rows_of(2, 0, &offsets), [0..2, 4..6]);
    /// assert_eq!(Placement::Contiguous.packed_rows_of(2, 1, &offsets), [2..4, 6..7]);
    /// ```
    #[must_use]
    pub fn packed_rows_of(self, world: u32, rank: u32, offsets: &[u64]) -> Vec<Range<u64>> {
        let of_sequence = |pair: &[u64]| {
            let (first, rows) = (pair[0], pair[1].saturating_sub(pair[0]));
            let ranges = self.rows_of(world, rank, rows).into_iter();
            ranges.map(move |range| first + range.start..first + range.end)
        };
        let ranges = offsets.windows(2).flat_map(of_sequence);
        ranges.filter(|range| !range.is_empty()).collect()
    }

    /// Chunks of a rank.
    #[must_use]
    pub const fn segments(self) -> u32 {
        match self {
            Self::Contiguous => 1,
            Self::Zigzag => 2,
        }
    }

    /// The index of the chunk of the sequence that is segment `segment` of `rank`.
    #[must_use]
    pub const fn chunk_of(self, world: u32, rank: u32, segment: u32) -> u32 {
        match segment {
            0 => rank,
            _ => 2 * world - 1 - rank,
        }
    }
}
