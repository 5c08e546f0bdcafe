//! Every option of every kernel: its name, its type, its limits, and what it means.

use super::option::{Limits, OptionSpec, Options, Written, options};
use super::option_type::OptionType;
use super::{
    Activation, AttentionOp, BLayout, CombineOp, Dim, DispatchOp, Dtype, GemmOp, Layout, Placement,
    Problem, Scale, Transfer,
};
use crate::spec::MAX_HEADS;
use crate::violation::Violations;
use serde::{Deserialize, Serialize};

const fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_one(nodes: &u32) -> bool {
    *nodes == 1
}

options! {
    /// A kernel as a person asks for it. Its options and the problem's stand side by side where it is written.
    #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub struct KernelConfig {
        options {
            /// What listings call it; the kernel's own id if absent.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            name: Option<String> as Name,
            /// Ranks, one GPU each: on one node 1, 2, 4 or 8; on several up to 8 of each.
            world: u32 as World,
            /// Nodes, with as many ranks each, numbered node by node; 1 if absent.
            #[serde(default = "one", skip_serializing_if = "is_one")]
            nodes: u32 as Nodes,
        }
        groups {
            /// What it computes.
            #[serde(flatten)]
            problem: Problem,
        }
    }

    /// A GEMM operator. Shapes are those of `op` on [`Op`](super::Op); row-major bf16 in, and out unless the epilogue says
    /// otherwise, fp32 accumulate.
    ///
    /// ```
    /// use mkernel_spec::{BLayout, Dim, GemmConfig, GemmOp};
    ///
    /// let up = GemmConfig {
    ///     n: Dim::Static(1024),
    ///     k: Dim::Static(8192),
    ///     b_layout: BLayout::Nk,
    ///     ..GemmConfig::new(GemmOp::AgGemm)
    /// };
    /// assert_eq!(up.m, Dim::DYNAMIC);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct GemmConfig {
        op: GemmOp, sizes: GemmShape {
            /// Rows of C, over all ranks.
            m as M,
            /// Columns of this rank's B and C.
            n as N,
            /// The contracted dimension, of this rank's A and B.
            k as K,
        }
        options {
            /// How B lies in memory: as `[K, N]` (kn), or as `[N, K]` (nk), as a linear layer keeps its weight.
            #[serde(default)]
            b_layout: BLayout as BLayout,
        }
        groups {
            /// What becomes of the sum before it is C.
            #[serde(default)]
            epilogue: Epilogue,
            /// Choices taken from the planner.
            #[serde(default)]
            tuning: Tuning,
        }
    }

    /// What becomes of the sum before it is C: `C = activation(sum + bias) + residual`, once, after the whole sum over K and
    /// over ranks, in fp32, then rounded once.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Epilogue: Default {
        options {
            /// Whether a bf16 `bias[N]`, of this rank's columns, is added first.
            ///
            /// Operators that reduce add it once, not once for each rank: all ranks pass the same.
            bias: bool as Bias,
            /// Whether a bf16 `residual`, with the rows and columns of this rank's C, is added last.
            ///
            /// `gemm_ar`: all ranks pass the same; of each row perhaps only one rank's is read.
            residual: bool as Residual,
            /// What is applied to each element between bias and residual, in fp32; `gelu` is the one with erf.
            activation: Activation as Activation,
            /// Elements of C.
            ///
            /// With `fp32`, `gemm_ar` also sends its results in fp32.
            output: Dtype as Output,
        }
    }

    /// Choices of the plan that a person may fix; what is `None` the planner chooses by its cost model.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Tuning: Default {
        options {
            /// Rows of a tile.
            #[limits(Limits::OneOf(&[64, 128], "wgmma works on 64 rows, a CTA has two math warpgroups"))]
            #[serde(skip_serializing_if = "Option::is_none")]
            tile_m: Option<u32> as TileM,
            /// Columns of a tile.
            #[limits(Limits::OneOf(&[64, 128, 256], "a wgmma is at most 256 columns wide"))]
            #[serde(skip_serializing_if = "Option::is_none")]
            tile_n: Option<u32> as TileN,
            /// Stages of the shared-memory ring between the loader and the tensor cores.
            #[limits(Limits::Range(2, 8))]
            #[serde(skip_serializing_if = "Option::is_none")]
            stages: Option<u32> as Stages,
            /// What moves bytes to the peers.
            #[serde(skip_serializing_if = "Option::is_none")]
            transfer: Option<Transfer> as Transfer,
            /// CTAs that only communicate.
            ///
            /// Only with `sm_push`; 0 = one warp of every CTA pushes.
            #[limits(Limits::Range(0, 128))]
            #[serde(skip_serializing_if = "Option::is_none")]
            comm_ctas: Option<u32> as CommCtas,
            /// Parts of K that arrive, and are waited for, one after the other; only with `sm_push`.
            #[limits(Limits::OneOf(&[1, 2, 4, 8], "slices of K are equal and few"))]
            #[serde(skip_serializing_if = "Option::is_none")]
            k_slices: Option<u32> as KSlices,
            /// Rows of a shard that arrive under one flag, a multiple of 128.
            #[serde(skip_serializing_if = "Option::is_none")]
            chunk_rows: Option<u32> as ChunkRows,
            /// Row tiles that are computed together, so that their B tiles stay in L2.
            #[limits(Limits::Range(1, 64))]
            #[serde(skip_serializing_if = "Option::is_none")]
            group_m: Option<u32> as GroupM,
            /// Tiles of each owner in a round, of operators that reduce.
            ///
            /// Own tiles come a round later than the others'.
            #[limits(Limits::Range(1, 1 << 20))]
            #[serde(skip_serializing_if = "Option::is_none")]
            round_tiles: Option<u32> as RoundTiles,
            /// How partial sums meet, of operators that reduce: 1 = from registers to registers, 2 = at owners of tiles.
            ///
            /// One shot is for few rows. Owners add up the parts of C, and for `gemm_ar` send the result to all.
            #[limits(Limits::OneOf(&[1, 2], "partial sums go to every rank, or to owners and from there to every rank"))]
            #[serde(skip_serializing_if = "Option::is_none")]
            shots: Option<u32> as Shots,
            /// Steps of K (64 columns) after which CTAs wait for each other; 0 = never.
            ///
            /// Then they load the same tiles at the same time.
            #[limits(Limits::Range(0, 1 << 20))]
            #[serde(skip_serializing_if = "Option::is_none")]
            pace_steps: Option<u32> as PaceSteps,
        }
    }

    /// An attention operator: bf16 in and out, fp32 softmax.
    ///
    /// ```
    /// use mkernel_spec::{AttentionConfig, AttentionOp, Dim, Placement};
    ///
    /// let attention = AttentionConfig {
    ///     batch: Dim::Static(1),
    ///     heads: Dim::Static(64),
    ///     kv_heads: Dim::Static(8),
    ///     head_dim: Dim::Static(128),
    ///     causal: true,
    ///     placement: Placement::Zigzag,
    ///     ..AttentionConfig::new(AttentionOp::RingAttention)
    /// };
    /// assert_eq!(attention.seq, Dim::DYNAMIC);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct AttentionConfig {
        op: AttentionOp, sizes: AttentionShape {
            /// Sequences.
            batch as Batch,
            /// Rows of each sequence, over all ranks.
            seq as Seq,
            /// Heads of Q and O.
            heads as Heads,
            /// Heads of K and V, a divisor of `heads`.
            ///
            /// With as many as `heads`, every head has K and V of its own; with 1, all share them.
            kv_heads as KvHeads,
            /// Elements of a row of a head: 64 or 128.
            head_dim as HeadDim,
        }
        options {
            /// How Q, K, V and O lie in memory: as `[B, S, H, D]` (bshd), or as `[B, H, S, D]` (bhsd).
            #[serde(default)]
            layout: Layout as Layout,
            /// Whether a row attends to no later rows.
            #[serde(default)]
            causal: bool as Causal,
            /// Which rows of the sequence a rank has: of W chunks number r (contiguous), or of 2W chunks number r and then
            /// number 2W - 1 - r (zigzag).
            ///
            /// With a mask, every rank has as much to do only with `zigzag`.
            #[serde(default)]
            placement: Placement as Placement,
            /// What scores are multiplied by before the softmax, a number above 0.
            #[serde(default)]
            scale: Scale as Scale,
        }
        groups {
            /// Choices taken from the planner.
            #[serde(default)]
            tuning: AttentionTuning,
        }
    }

    /// Choices taken from the planner of attention operators. What is absent, the planner chooses.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct AttentionTuning: Default {
        options {
            /// CTAs that send K and V: before they compute, on several nodes meanwhile.
            #[limits(Limits::Range(1, 128))]
            #[serde(skip_serializing_if = "Option::is_none")]
            comm_ctas: Option<u32> as =CommCtas,
            /// Heads of K and V, over all batches, that a rank has room for, of each peer.
            #[limits(Limits::Range(1, MAX_HEADS as u32))]
            #[serde(skip_serializing_if = "Option::is_none")]
            kv_slots: Option<u32> as KvSlots,
        }
    }

    /// Dispatch of tokens to experts, and their first product: bf16, fp32 accumulate. Rank r has experts `r·E/W ..`.
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
    /// assert_eq!(up.max_tokens, Dim::DYNAMIC);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct DispatchConfig {
        op: DispatchOp, sizes: DispatchShape {
            /// Experts over all ranks.
            experts as Experts,
            /// Experts of each token.
            top_k as TopK,
            /// The most tokens that a rank can have; how many it has, each call says.
            max_tokens as MaxTokens,
            /// Elements of a token.
            hidden as Hidden,
            /// Columns of the result.
            intermediate as Intermediate,
        }
        options {
            /// How the weight of an expert lies in memory: as `[hidden, columns]` (kn), or as `[columns, hidden]` (nk).
            #[serde(default)]
            b_layout: BLayout as =BLayout,
            /// Whether an expert's weight is a gate and an up projection, as many columns each, of which `silu(gate) · up`
            /// is the result.
            #[serde(default)]
            swiglu: bool as Swiglu,
            /// The most rows that a rank's result can have; as many as tokens can make if absent.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            max_rows: Option<u32> as MaxRows,
            /// Rows of a tile.
            #[limits(Limits::OneOf(&[64, 128], "a CTA has two math warpgroups"))]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            tile_m: Option<u32> as =TileM,
            /// Columns of a tile.
            #[limits(Limits::OneOf(&[128, 256], "a CTA has two math warpgroups"))]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            tile_n: Option<u32> as =TileN,
            /// CTAs that communicate before they compute.
            #[limits(Limits::Range(1, 128))]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            comm_ctas: Option<u32> as =CommCtas,
        }
    }

    /// The weighted sums of what experts made of each token, back at the token's rank: bf16, fp32 accumulate. Options are those
    /// of the operator that dispatched.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct CombineConfig {
        op: CombineOp, sizes: CombineShape {
            /// Experts over all ranks.
            experts as =Experts,
            /// Experts of each token.
            top_k as =TopK,
            /// The most tokens that a rank can have; how many it has, each call says.
            max_tokens as =MaxTokens,
            /// Elements of a token.
            hidden as =Hidden,
        }
        options {
            /// The most rows of a rank, as of the operator that dispatched.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            max_rows: Option<u32> as =MaxRows,
        }
    }
}
