//! The granules of K of a batch-invariant GEMM: ranges of K whose sums are computed apart and added as a binary tree.
//!
//! A CTA that computes all of K adds the granules of a tile like CTAs that share the tile. So sums do not depend on how many CTAs
//! share a tile, which depends on the number of rows.

use super::config::{GemmConfig, GemmShape};
use super::spec::GemmSpec;

/// The fewest stages of a granule: a shorter one would save less than its exchange costs.
const MIN_GRANULE_STEPS: u64 = 8;
/// The columns of a tile that several CTAs share if C has few rows.
const TILE_COLS: u64 = 128;
/// The numbers of granules that K may have, and the most CTAs that share the tiles of few rows: almost all of a GPU's SMs. The numbers
/// are constants, since results must not depend on the GPU (`docs/performance.md#granules`).
const CHOICES: [(u64, u64); 2] = [(4, 128), (2, 110)];

impl GemmSpec<'_> {
    /// The number of granules of K if results must not depend on the plan.
    pub fn granules(&self) -> Option<u32> {
        self.config.granules(self.shape)
    }

    /// The most columns of a consumer warpgroup. Beside the sums of all columns, a thread has the products of a granule if there
    /// are several granules, and the sum of a pair of granules if there are four. A norm keeps elements of rows in registers.
    pub fn most_group_cols(&self) -> u32 {
        match self.granules() {
            None | Some(1) => 256,
            Some(_) if self.epilogue().normalises() => 64,
            Some(4) if self.op().reduces() && self.takes_rows() => 64,
            Some(_) => 128,
        }
    }
}

impl GemmConfig {
    /// The number of granules of K, a power of two: the most CTAs that share a tile. `None` if results may depend on the plan.
    ///
    /// The number depends on N, K and the element only. If C has few rows, one row of tiles should keep the SMs of a GPU busy. Wide
    /// results do that with one granule, which costs nothing. Sums of e4m3 are promoted in order, so they have one granule.
    #[must_use]
    pub fn granules(&self, shape: GemmShape) -> Option<u32> {
        let tiles = (shape.n * u64::from(self.epilogue.weight_cols())).div_ceil(TILE_COLS);
        let steps = shape.k / u64::from(self.types().tile_k());
        let fits = |(granules, ctas): &(u64, u64)| {
            granules * tiles <= *ctas
                && granules * MIN_GRANULE_STEPS <= steps
                && self.types().a.bytes() > 1
        };
        let chosen = CHOICES.into_iter().find(fits);
        self.batch_invariant
            .then(|| chosen.map_or(1, |(granules, _)| granules as u32))
    }
}
