//! The configuration of operators with products of experts: `dispatch_gemm`, `gemm_combine` and `moe_layer`.

use super::router::Router;
use crate::arch::Tile;
use crate::config::{Dim, Dtype, Field};
use crate::diagnostic::Diagnostics;
use crate::ops::gemm::{BLayout, SCALE_BLOCK, Scales};
use crate::options::op::Op;
use crate::options::option::{OptionSpec, options};
use crate::options::option_type::OptionType;
use crate::options::value::Value;
use serde::{Deserialize, Serialize};
use std::fmt;

options! {
    /// Products of experts, to which tokens are sent or whose rows return to their tokens: `dtype`, fp32 accumulate. Rank r has
    /// experts `r·E/W ..`.
    ///
    /// ```
    /// use mkernel_spec::{Dim, DispatchConfig, DispatchOp};
    ///
    /// let up = DispatchConfig {
    ///     experts: Dim::Static(256),
    ///     top_k: Dim::Static(8),
    ///     hidden: Dim::Static(7168),
    ///     intermediate: Dim::Static(2048),
    ///     swiglu: true,
    ///     ..DispatchConfig::new(DispatchOp::DispatchGemm)
    /// };
    /// assert_eq!(up.max_tokens, Dim::Dynamic);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct DispatchConfig {
        op: DispatchOp, sizes: DispatchShape {
            /// Experts over all ranks.
            experts as EXPERTS,
            /// Experts of each token.
            top_k as TOP_K,
            /// The most tokens that a rank can have. Each call gives the number of tokens.
            max_tokens as MAX_TOKENS,
            /// Elements of a token.
            hidden as HIDDEN,
            /// Columns of an expert's first product: of the C of `dispatch_gemm`, of the hidden rows of `moe_layer`, or of the A of
            /// `gemm_combine`.
            intermediate as INTERMEDIATE,
        }
        options {
            /// Type of the elements of tokens, weights and C.
            ///
            /// Sums are fp32. fp16 has numbers up to 65504; larger results become infinite. With e4m3, weights are nk, and C is
            /// bf16 unless it has scales.
            #[among(Dtype::GEMM_FACTORS)]
            #[serde(default)]
            dtype: Dtype as =DTYPE,
            /// The elements of tokens or rows of A, and of an expert's weight, that share a scale, an fp32 number by which the elements
            /// are multiplied; only with e4m3.
            #[serde(default)]
            scales: Scales as =SCALES,
            /// How the weight of an expert lies in memory: as `[K, columns]` (kn), or as `[columns, K]` (nk).
            #[serde(default)]
            b_layout: BLayout as =B_LAYOUT,
            /// Whether an expert's weight is a gate and an up projection of equal numbers of columns, with the result
            /// `silu(gate) · up`. Not of `gemm_combine`.
            #[serde(default)]
            swiglu: bool as =SWIGLU,
            /// Whether C is e4m3 and 128 elements of a row of C share a scale (block). Only of `dispatch_gemm`.
            ///
            /// The kernel also writes `c_scales`, which the product of the rows with the next weights takes as its scales of rows.
            #[among(Scales::OF_TILES)]
            #[serde(default)]
            result_scales: Scales as =RESULT_SCALES,
            /// The most rows of the experts of a rank; if absent, the most rows that the tokens of all ranks can make.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            max_rows: Option<u32> as MAX_ROWS,
            /// Rows of a tile.
            #[limits([64, 128], "a CTA has two consumer warpgroups")]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            tile_m: Option<u32> as =TILE_M,
            /// Columns of a tile.
            #[limits([128, 256], "a CTA has two consumer warpgroups")]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            tile_n: Option<u32> as =TILE_N,
            /// The most slices of K into which a tile of the last round is divided; 1 = into none.
            ///
            /// The more tiles the last round has, the fewer slices a tile has.
            #[limits(1..=16)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            split_k: Option<u32> as =SPLIT_K,
            /// CTAs that send tokens before they compute.
            #[limits(1..=128)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            comm_ctas: Option<u32> as =COMM_CTAS,
            /// Tokens of a put to another node; about 1 MiB of tokens if absent.
            #[limits(1..=65536)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            put_tokens: Option<u32> as PUT_TOKENS,
            /// Puts of a peer for which a rank has room. Later puts wait until earlier puts have been acknowledged.
            #[limits(1..=65536)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            puts_in_flight: Option<u32> as PUTS_IN_FLIGHT,
            /// Whether the bits of a row of C depend only on the token and the weights of its experts, and not on the other tokens or
            /// the plan.
            ///
            /// Tiles are then not divided into slices of K.
            #[serde(default)]
            batch_invariant: bool as =BATCH_INVARIANT,
        }
        groups {
            /// The choice of experts from the router's logits.
            #[serde(default)]
            router: Router,
        }
    }
}

/// The tile of kernels that quantise hidden rows: a warp has a whole block of columns of each of its rows.
pub(super) const QUANTISING_TILE: Tile = Tile { m: 128, n: 256 };

impl DispatchConfig {
    /// Whether the kernel turns hidden rows into elements with scales.
    pub(super) fn quantises(&self) -> bool {
        self.op == DispatchOp::MoeLayer && self.scales != Scales::None
    }

    /// Whether the kernel turns the rows of C into elements with scales.
    #[must_use]
    pub const fn quantises_results(&self) -> bool {
        !matches!(self.result_scales, Scales::None)
    }

    /// Whether kernels can have tiles of this size. A warp of a kernel that quantises has whole blocks of columns of each of its rows.
    pub(super) fn has_tile(&self, tile: Tile) -> bool {
        let cols = tile.n / if self.swiglu { 2 } else { 1 };
        (!self.quantises() || tile == QUANTISING_TILE)
            && (!self.quantises_results()
                || tile.m == QUANTISING_TILE.m && u64::from(cols) >= SCALE_BLOCK)
    }

    /// Whether tiles of this size may be divided into slices of K. With scales of blocks, tiles of 128x256 leave no registers for the
    /// bounds of a slice. ptxas serialises products of two-byte elements if sums over slices are quantised.
    pub(super) fn divides(&self, tile: Tile) -> bool {
        (self.scales != Scales::Block || tile != Tile { m: 128, n: 256 })
            && (!self.quantises_results() || self.dtype.bytes() == 1)
    }
}

/// The operator. [`Op`] describes each operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchOp {
    /// [`Op::DispatchGemm`]
    DispatchGemm,
    /// [`Op::MoeLayer`]
    MoeLayer,
    /// [`Op::GemmCombine`]
    GemmCombine,
}

impl DispatchOp {
    /// All operators of the kind.
    pub const ALL: [Self; 3] = [Self::DispatchGemm, Self::MoeLayer, Self::GemmCombine];

    /// The [`Op`] of this operator.
    #[must_use]
    pub const fn op(self) -> Op {
        match self {
            Self::DispatchGemm => Op::DispatchGemm,
            Self::MoeLayer => Op::MoeLayer,
            Self::GemmCombine => Op::GemmCombine,
        }
    }

    /// Whether tokens are sent to their experts, which apply the first product.
    #[must_use]
    pub const fn dispatches(self) -> bool {
        !matches!(self, Self::GemmCombine)
    }

    /// Whether the rows of a product return to their tokens.
    #[must_use]
    pub const fn returns(self) -> bool {
        !matches!(self, Self::DispatchGemm)
    }
}

impl fmt::Display for DispatchOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op().name())
    }
}

/// The largest number of rows on one rank that the tokens of all ranks can make, with `experts` experts over all ranks.
#[must_use]
pub const fn all_rows(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> u64 {
    let here = experts / world as u64;
    let each = if top_k < here { top_k } else { here };
    max_tokens.saturating_mul(each).saturating_mul(world as u64)
}
