//! The part of a plan that only operators with products of experts have.

use super::chunks::TokenChunks;
use super::config::{DispatchConfig, DispatchShape};
use super::types::DispatchTypes;
use crate::arch::{Arch, Tile};
use crate::ops::gemm::{BLayout, Split};
use crate::topology::Topology;
use serde::Serialize;

/// Groups of copies that a load warp leaves unfinished, one stage each. The number is smaller than the number of stages.
pub const COPIES_AHEAD: u32 = 2;
/// Row tiles of an expert that advance along the columns together, so that they share weights in L2.
pub const GROUP_ROWS: u32 = 16;
/// Tiles that a CTA has taken: one is computed, and one comes next.
pub(super) const TILE_BUFFERS: u32 = 2;
/// A fault, before the numbers of each expert.
pub const FAULT_WORDS: u64 = 8;
/// The part of a plan that only operators with products of experts have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DispatchPlan {
    /// The architecture of the kernel.
    #[serde(skip)]
    pub arch: Arch,
    /// The configuration of the operator.
    pub config: DispatchConfig,
    /// The sizes of the problem.
    pub shape: DispatchShape,
    /// Rows and columns of the product that a CTA computes at a time.
    pub tile: Tile,
    /// How two consumer warpgroups share a tile.
    pub split: Split,
    /// Stages of the pipeline in shared memory.
    pub stages: u32,
    /// The most slices of K into which a tile of the last round is divided; 1 = into none.
    pub most_splits: u32,
    /// The number of CTAs, the first CTAs of the launch, that communicate before they compute.
    pub comm_ctas: u32,
    /// The most rows of a rank.
    pub max_rows: u64,
    /// The largest number of rows on a rank that come from the tokens of one other rank.
    pub source_rows: u64,
    /// Tokens that one warp sends under one flag.
    pub block_tokens: u32,
    /// The most tokens that a CTA routes.
    pub slice_tokens: u64,
    /// The exchange between nodes; `None` on one node.
    pub internode: Option<InternodeDispatch>,
}

impl DispatchPlan {
    /// The types of elements.
    #[must_use]
    pub const fn types(&self) -> DispatchTypes {
        self.config.types()
    }

    /// Experts of a rank.
    #[must_use]
    pub const fn local_experts(&self, world: u32) -> u64 {
        self.shape.experts / world as u64
    }

    /// Columns of an expert's weight.
    #[must_use]
    pub const fn weight_cols(&self) -> u64 {
        self.shape.intermediate * self.weights_of_col()
    }

    /// Columns of an expert's weight that make one column of the result.
    #[must_use]
    pub const fn weights_of_col(&self) -> u64 {
        if self.config.swiglu { 2 } else { 1 }
    }

    /// Columns of the result that a tile makes.
    #[must_use]
    pub const fn tile_cols(&self) -> u32 {
        self.tile.n / self.weights_of_col() as u32
    }

    /// Whether tokens are sent to their experts, which apply the first product.
    #[must_use]
    pub const fn dispatches(&self) -> bool {
        self.config.op.dispatches()
    }

    /// Whether the rows of the second product, the down projection, return to their tokens.
    #[must_use]
    pub const fn returns(&self) -> bool {
        self.config.op.returns()
    }

    /// Whether the kernel computes both products, and keeps the rows of the first product.
    #[must_use]
    pub const fn is_layer(&self) -> bool {
        self.dispatches() && self.returns()
    }

    /// Tiles of an expert's first product that lie side by side; 0 if the kernel does not compute this product.
    #[must_use]
    pub const fn col_tiles(&self) -> u64 {
        match self.dispatches() {
            true => self.shape.intermediate.div_ceil(self.tile_cols() as u64),
            false => 0,
        }
    }

    /// Tiles of the second product that lie side by side; 0 if the kernel does not compute this product.
    #[must_use]
    pub const fn down_col_tiles(&self) -> u64 {
        match self.returns() {
            true => self.shape.hidden.div_ceil(self.tile.n as u64),
            false => 0,
        }
    }

    /// The most row tiles of a rank. The last one of each expert may have few rows.
    pub(super) const fn row_tiles(&self, world: u32) -> u64 {
        self.max_rows.div_ceil(self.tile.m as u64) + self.local_experts(world)
    }

    /// Columns of the product that a consumer warpgroup computes.
    #[must_use]
    pub fn group_n(&self) -> u32 {
        match self.split {
            Split::Rows => self.tile.n,
            Split::Cols => self.tile.n / 2,
        }
    }

    /// Columns of the weight that one load brings: whole lines of the swizzle, or all columns that lie together.
    #[must_use]
    pub fn box_cols(&self) -> u32 {
        match (self.config.b_layout, self.config.swiglu) {
            (BLayout::Kn, _) => self.types().weights.per_line(),
            (BLayout::Nk, true) => self.group_n() / 2,
            (BLayout::Nk, false) => self.tile.n,
        }
    }

    /// Columns of the weight of the second product that one load brings.
    #[must_use]
    pub fn down_box_cols(&self) -> u32 {
        match self.config.b_layout {
            BLayout::Kn => self.types().weights.per_line(),
            BLayout::Nk => self.tile.n,
        }
    }

    /// Whether tiles may be divided into slices of K.
    #[must_use]
    pub const fn divides_tiles(&self) -> bool {
        self.most_splits > 1
    }

    /// Bytes of a token on its way to other ranks: its elements, and behind them its scales.
    #[must_use]
    pub const fn token_bytes(&self) -> u64 {
        let config = &self.config;
        config
            .scales
            .sent_row_bytes(self.types().tokens, self.shape.hidden)
    }

    /// Bytes of a row of `silu(gate) · up` and its scales. The row is a factor, as tokens are.
    pub(super) const fn hidden_row_bytes(&self) -> u64 {
        let config = &self.config;
        config
            .scales
            .sent_row_bytes(self.types().tokens, self.shape.intermediate)
    }

    /// Bytes of an expert's result for a token.
    pub(super) const fn result_bytes(&self) -> u64 {
        self.shape.hidden * self.types().c.bytes()
    }

    /// The scales of a token, except one that all tokens share.
    #[must_use]
    pub const fn token_scales(&self) -> u64 {
        self.config.scales.of_row(self.shape.hidden)
    }

    /// Whether consumers add the products of each stage to sums of their own.
    pub(super) const fn promotes(&self) -> bool {
        self.types().tokens.bytes() == 1
    }

    /// Flags of a source's tokens.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.shape.max_tokens.div_ceil(self.block_tokens.into())
    }

    /// Across nodes, the room of the segments of a rank for tokens of other ranks: one token for each of its rows, or all
    /// tokens if all tokens are fewer. If chunks are not acknowledged, the tokens of peers lie elsewhere. The room is at least
    /// one token, so that kernels for any number of ranks have the region.
    #[must_use]
    pub fn segment_tokens(&self, topology: Topology) -> u64 {
        let elsewhere = if self.acknowledges() {
            0
        } else {
            topology.peers()
        };
        let all = u64::from(topology.world() - 1 - elsewhere) * self.shape.max_tokens;
        self.max_rows.min(all).max(1)
    }

    /// The largest number of tokens that a rank puts to all peers together. Each token goes to at most as many peers as the token
    /// has experts.
    #[must_use]
    pub fn put_tokens(&self, topology: Topology) -> u64 {
        self.shape.max_tokens * self.shape.top_k.min(topology.peers().into())
    }

    /// Whether chunks are acknowledged.
    #[must_use]
    pub fn acknowledges(&self) -> bool {
        self.internode.is_some() && self.chunks().are_acknowledged(self.shape.max_tokens)
    }

    /// Chunks between nodes.
    pub(super) fn chunks(&self) -> TokenChunks {
        let internode = self.internode.as_ref();
        internode
            .map(|internode| internode.chunks)
            .unwrap_or_default()
    }

    /// Choices in shared memory while a slice is routed: whole vectors of four.
    #[must_use]
    pub const fn slice_choices(&self) -> u64 {
        (self.slice_tokens * self.shape.top_k).next_multiple_of(4)
    }

    /// Words of the counts that a rank sends to another rank: rows, and the tokens that are sent for these rows.
    #[must_use]
    pub const fn count_words(&self) -> u64 {
        FAULT_WORDS + 2 * self.shape.experts
    }
}

/// The exchange between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InternodeDispatch {
    /// The tokens of a put, which are whole blocks, and the tokens of a peer for which a rank has room until they are forwarded.
    #[serde(flatten)]
    pub chunks: TokenChunks,
    /// Bytes of the longest packet, in whole vectors.
    pub packet_bytes: u64,
}
