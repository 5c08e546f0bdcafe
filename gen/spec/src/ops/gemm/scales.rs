//! The scales of A and B, and the bytes of rows that travel with their scales.

use crate::config::Dtype;
use crate::options::option_type::choices;
use serde::{Deserialize, Serialize};

/// The bytes that L2 reads at a time.
const SECTOR_BYTES: u64 = 32;
/// The size of a block with one scale: elements of K, and columns of B.
pub const SCALE_BLOCK: u64 = 128;

choices! {
    /// The elements of a matrix that share a scale.
    #[derive(Default)]
    pub enum Scales {
        /// There are no scales.
        #[default]
        None = "none",
        /// All elements: `a_scales[1]`, `b_scales[1]`.
        Tensor = "tensor",
        /// A row of A, and a column of B: `a_scales[M]`, `b_scales[N]`.
        Row = "row",
        /// A row of A in 128 of K, and 128 columns of B in 128 of K: `a_scales[M, ⌈K/128⌉]`, `b_scales[⌈N/128⌉, ⌈K/128⌉]`.
        Block = "block",
    }
}

impl Scales {
    /// The scales of a matrix whose rows are computed one by one.
    pub const OF_ROWS: [Self; 3] = [Self::None, Self::Row, Self::Block];

    /// The scales of a matrix whose tiles are computed one by one.
    pub const OF_TILES: [Self; 2] = [Self::None, Self::Block];

    /// The scales of a row of A with `k` columns, except one that all rows share.
    #[must_use]
    pub const fn of_row(self, k: u64) -> u64 {
        match self {
            Self::None | Self::Tensor => 0,
            Self::Row => 1,
            Self::Block => k.div_ceil(SCALE_BLOCK),
        }
    }

    /// The columns of a row of `cols` columns that share a scale, unless all rows share one. `None` if there are no scales.
    #[must_use]
    pub const fn shared_by(self, cols: u64) -> Option<u64> {
        match self {
            Self::None | Self::Tensor => None,
            Self::Row => Some(cols),
            Self::Block => Some(SCALE_BLOCK),
        }
    }

    /// Bytes of a row of A with `k` columns of type `a` on its way to other ranks: its elements, and behind them its scales. A row
    /// with scales begins at a sector of L2, so that a load of 128 bytes of the row reads four sectors.
    #[must_use]
    pub const fn sent_row_bytes(self, a: Dtype, k: u64) -> u64 {
        let elements = k * a.bytes();
        match self.of_row(k) {
            0 => elements,
            scales => (elements + scales * Dtype::Fp32.bytes()).next_multiple_of(SECTOR_BYTES),
        }
    }

    /// The part of a kernel's name for scales, such as `_row`. Empty if there are none.
    #[must_use]
    pub fn suffix(self) -> String {
        match self {
            Self::None => String::new(),
            scales => format!("_{}", scales.name()),
        }
    }
}
