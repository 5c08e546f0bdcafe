//! [`GemmSpec`]: a GEMM whose sizes are known, on all ranks.

use super::config::{BLayout, Epilogue, GemmConfig, GemmOp, GemmShape, Tuning};
use super::op_plan::{OUT_COLS, Split};
use super::types::GemmTypes;
use crate::abi::Extent;
use crate::arch::{Arch, Tile};
use crate::parts::id::id_prefix;
use crate::topology::Topology;

/// The view that candidates have of a GEMM whose sizes are known, on all ranks.
#[derive(Clone, Copy)]
pub(super) struct GemmSpec<'a> {
    /// All ranks.
    pub ranks: Topology,
    /// The ranks that communicate: all ranks, or one rank alone.
    pub topology: Topology,
    pub config: &'a GemmConfig,
    pub shape: GemmShape,
}

impl GemmSpec<'_> {
    pub const fn op(&self) -> GemmOp {
        self.config.op
    }

    pub const fn world(&self) -> u32 {
        self.topology.world()
    }

    pub const fn crosses_nodes(&self) -> bool {
        self.topology.nodes > 1
    }

    /// Whether NICs read A in place.
    pub const fn sends_in_place(&self) -> bool {
        self.crosses_nodes() && self.config.symmetric_a
    }

    pub const fn b_layout(&self) -> BLayout {
        self.config.b_layout
    }

    pub const fn epilogue(&self) -> Epilogue {
        self.config.epilogue
    }

    /// Columns of this rank's B.
    pub const fn cols_of_b(&self) -> u64 {
        self.shape.n * self.epilogue().weight_cols() as u64
    }

    /// Columns of C that a tile makes.
    pub const fn tile_cols(&self, tile: Tile) -> u32 {
        tile.n / self.epilogue().weight_cols()
    }

    /// Columns of C that a consumer warpgroup makes of a tile.
    pub const fn group_cols(&self, tile: Tile) -> u32 {
        Split::of(tile).group_cols(tile) / self.epilogue().weight_cols()
    }

    /// Columns of C in a line of an output buffer: the columns of a line, or all columns of a consumer warpgroup.
    pub fn line_cols(&self, tile: Tile) -> u32 {
        self.types().c.per_line().min(self.group_cols(tile))
    }

    /// Sub-tiles of a consumer warpgroup that one CTA completes together, since their columns lie in one line.
    pub fn subs_together(&self, tile: Tile) -> u32 {
        self.line_cols(tile).div_ceil(OUT_COLS)
    }

    pub const fn types(&self) -> GemmTypes {
        self.config.types()
    }

    pub const fn tuning(&self) -> &Tuning {
        &self.config.tuning
    }

    /// Whether each call gives the rows. Then the rows of `shape` are the most rows.
    pub const fn takes_rows(&self) -> bool {
        self.config.m.is_given_at_run_time()
    }

    /// Whether ranks announce the start of each call to each other, with its rows.
    pub const fn announces_begin(&self) -> bool {
        self.takes_rows() && self.world() > 1
    }

    /// Whether ranks compare the places of their results in symmetric memory. They compare even if ranks do not store to results of
    /// peers in this plan, because the plan for more rows may.
    pub const fn compares_places(&self) -> bool {
        self.config.symmetric_result && self.topology.nodes == 1 && self.announces_begin()
    }

    /// Whether rows are normalised in a world of 1, where no ranks exchange sums.
    pub fn normalises_alone(&self) -> bool {
        self.epilogue().normalises() && self.world() == 1
    }

    /// The rows over all ranks.
    pub const fn all_rows(&self) -> Extent {
        match self.takes_rows() {
            true => Extent::Rows { most: self.shape.m },
            false => Extent::Fixed(self.shape.m),
        }
    }

    pub const fn rows_of_shard(&self) -> Extent {
        match self.takes_rows() {
            true => Extent::RowsOfShard {
                most: self.shape.m,
                ranks: self.world() as u64,
            },
            false => Extent::ShardRows {
                total: self.shape.m,
                per_rank: self.shard_rows(),
            },
        }
    }

    /// Rows of A on this rank.
    pub const fn rows_of_a(&self) -> Extent {
        match self.op() {
            GemmOp::AgGemm => self.rows_of_shard(),
            GemmOp::GemmRs | GemmOp::GemmAr | GemmOp::Gemm => self.all_rows(),
        }
    }

    /// The first part of a kernel's name, such as `gemm_rs_sm90a_g4_m4096n8192k2048`.
    pub fn id(&self, arch: Arch) -> String {
        let GemmShape { m, n, k } = self.shape;
        let most = if self.takes_rows() { "max" } else { "" };
        format!(
            "{}_m{most}{m}n{n}k{k}",
            id_prefix(self.op(), arch, self.ranks)
        )
    }

    /// Bytes of a row of A.
    pub const fn a_row_bytes(&self) -> u64 {
        self.shape.k * self.types().a.bytes()
    }

    /// Bytes of a row of A on its way to other ranks.
    pub fn sent_row_bytes(&self) -> u64 {
        self.config.sent_row_bytes(self.shape.k)
    }

    /// Whether the last rank has no rows.
    pub fn has_ranks_without_rows(&self) -> bool {
        self.shape.m <= self.shard_rows() * u64::from(self.world() - 1)
    }

    /// Rows of a full shard.
    pub const fn shard_rows(&self) -> u64 {
        self.shape.shard_rows(self.world())
    }
}
