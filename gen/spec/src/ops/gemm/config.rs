//! The configuration of a GEMM operator: `ag_gemm`, `gemm_rs`, `gemm_ar`, `gemm`.

use super::scales::Scales;
use crate::abi::MAX_BUCKETS;
use crate::config::Dtype;
use crate::config::{Dim, Eps, Field, Norm};
use crate::diagnostic::Diagnostics;
use crate::options::op::Op;
use crate::options::option::{OptionSpec, options};
use crate::options::option_type::{OptionType, choices};
use crate::options::value::Value;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most stages: as many as shared memory has room for where C has few rows.
pub(super) const MAX_STAGES: u32 = 12;

// Limits are literals, which documentation shows.
const _: () = assert!(MAX_STAGES == 12 && MAX_BUCKETS == 4);

options! {
    /// A GEMM operator. Shapes are those of `op` on [`Op`](crate::Op); row-major `dtype` in, and out unless the epilogue
    /// says otherwise, fp32 accumulate.
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
    /// assert_eq!(up.m, Dim::Dynamic);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct GemmConfig {
        op: GemmOp, sizes: GemmShape {
            /// Rows of C, over all ranks; of `gemm`, those of each rank.
            m as M,
            /// Columns of this rank's B and C; with `swiglu`, those of C, and B has twice as many.
            n as N,
            /// The contracted dimension, of this rank's A and B.
            k as K,
        }
        options {
            /// Type of the elements of A, B and what an epilogue adds.
            ///
            /// Sums are fp32. fp16 has numbers up to 65504; larger results become infinite. With e4m3, only A and B have this
            /// type, B is `[N, K]`, and what an epilogue adds, partial sums and C are bf16.
            #[among(Dtype::GEMM_FACTORS)]
            #[serde(default)]
            dtype: Dtype as =DTYPE,
            /// Which elements of A and of B share a scale, an fp32 number by which the elements are multiplied; only with e4m3.
            #[serde(default)]
            scales: Scales as SCALES,
            /// How B lies in memory: as `[K, N]` (kn), or as `[N, K]` (nk), as a linear layer keeps its weight.
            #[serde(default)]
            b_layout: BLayout as B_LAYOUT,
            /// Whether C lies in symmetric memory, at the same offset on all ranks.
            ///
            /// Ranks of a node then store results straight to each other's C where tiles have owners. Only of `gemm_ar`.
            #[serde(default)]
            symmetric_result: bool as SYMMETRIC_RESULT,
            /// Whether A lies in symmetric memory, in any tensor of each rank.
            ///
            /// NICs then send it from there to other nodes, in place of a copy in the workspace. Only of `ag_gemm`.
            #[serde(default)]
            symmetric_a: bool as SYMMETRIC_A,
            /// Whether the bits of a row of C depend only on the row's operands, B, the world and the nodes, and not on M, the
            /// other rows or the plan.
            #[serde(default)]
            batch_invariant: bool as BATCH_INVARIANT,
        }
        groups {
            /// The operations between the sum and C.
            #[serde(default)]
            epilogue: Epilogue,
            /// Options that fix choices of the planner.
            #[serde(default)]
            tuning: Tuning,
        }
    }

    /// The operations between the sum and C: `C = activation(sum + bias) + residual`, once, after the whole sum over K and
    /// over ranks, in fp32, then rounded once.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Epilogue {
        options {
            /// Whether a `bias[N]`, of this rank's columns, is added first.
            ///
            /// Operators that reduce add it once, not once for each rank: all ranks pass the same.
            bias: bool as BIAS,
            /// Whether a `residual`, with the rows and columns of this rank's C, is added last.
            ///
            /// `gemm_ar`: all ranks pass the same; of each row perhaps only one rank's is read.
            residual: bool as RESIDUAL,
            /// The function of each element between bias and residual, in fp32; `gelu` is the function with erf.
            activation: Activation as ACTIVATION,
            /// Whether B is a gate and an up projection of N columns each, and the activation is `silu(gate) · up`.
            ///
            /// B has the N columns of the gate, and then those of up, and so have its scales and the bias. Only of `ag_gemm` and
            /// `gemm`.
            swiglu: bool as SWIGLU,
            /// Elements of C: fp32, or those of A, which are the default; with e4m3, bf16.
            ///
            /// With `fp32`, `gemm_ar` also sends its results in fp32.
            #[among(Dtype::RESULTS)]
            #[serde(skip_serializing_if = "Option::is_none")]
            output: Option<Dtype> as OUTPUT,
            /// Whether rows of `gemm_ar` and `gemm_rs` are normalised: `rms` is RMSNorm.
            ///
            /// What would be C is then the new residual, `residual_out`, and C is its norm. The kernel also reads a
            /// `weight[N]`. Partial sums of `gemm_rs` then meet in two shots.
            norm: Norm as =NORM,
            /// The number above 0 that the norm adds to the mean of squares.
            eps: Eps as =EPS,
            /// The elements of a row of C that share a scale: all (row, only with a norm), or 128 (block). C is then e4m3.
            ///
            /// The kernel also writes `c_scales`, which the next product with the same `scales` takes as `a_scales`.
            /// `residual_out` keeps its type.
            #[among(Scales::OF_ROWS)]
            result_scales: Scales as =RESULT_SCALES,
        }
    }

    /// Options that fix choices of the planner. The planner makes those that are `None`, by its cost model.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Tuning {
        options {
            /// Rows of a tile.
            #[limits([64, 128], "wgmma works on 64 rows, a CTA has two consumer warpgroups")]
            #[serde(skip_serializing_if = "Option::is_none")]
            tile_m: Option<u32> as TILE_M,
            /// Columns of a tile.
            #[limits([64, 128, 256], "a wgmma is at most 256 columns wide")]
            #[serde(skip_serializing_if = "Option::is_none")]
            tile_n: Option<u32> as TILE_N,
            /// Stages of the pipeline that brings A and B to shared memory.
            #[limits(2..=12)]
            #[serde(skip_serializing_if = "Option::is_none")]
            stages: Option<u32> as STAGES,
            /// The engine that moves bytes to the peers.
            #[serde(skip_serializing_if = "Option::is_none")]
            transfer: Option<Transfer> as TRANSFER,
            /// CTAs that only communicate.
            ///
            /// Only with `sm_push`; 0 = one warp of every CTA pushes.
            #[limits(0..=128)]
            #[serde(skip_serializing_if = "Option::is_none")]
            comm_ctas: Option<u32> as COMM_CTAS,
            /// Slices of K that arrive, and are waited for, one after the other; only with `sm_push`.
            #[limits([1, 2, 4, 8], "slices of K are equal and few")]
            #[serde(skip_serializing_if = "Option::is_none")]
            k_slices: Option<u32> as K_SLICES,
            /// Rows of a shard that arrive under one flag, a multiple of 128.
            #[serde(skip_serializing_if = "Option::is_none")]
            chunk_rows: Option<u32> as CHUNK_ROWS,
            /// Row tiles that are computed together, so that their B tiles stay in L2.
            #[limits(1..=64)]
            #[serde(skip_serializing_if = "Option::is_none")]
            group_m: Option<u32> as GROUP_M,
            /// Tiles of each owner in a round, of operators that reduce.
            ///
            /// Own tiles come a round later than the others'.
            #[limits(1..=1048576)]
            #[serde(skip_serializing_if = "Option::is_none")]
            round_tiles: Option<u32> as ROUND_TILES,
            /// How partial sums meet, of operators that reduce: 1 = from registers to registers, 2 = at owners of tiles.
            ///
            /// One shot is for few rows. Owners add up the parts of C, and for `gemm_ar` send the result to all.
            #[limits([1, 2], "partial sums go to every rank, or to owners and from there to every rank")]
            #[serde(skip_serializing_if = "Option::is_none")]
            shots: Option<u32> as SHOTS,
            /// Steps of K (64 columns) after which CTAs wait for each other; 0 = never.
            ///
            /// Then they load the same tiles at the same time.
            #[limits(0..=1048576)]
            #[serde(skip_serializing_if = "Option::is_none")]
            pace_steps: Option<u32> as PACE_STEPS,
            /// The most CTAs that share a tile of the last round, each with a slice of K; 1 = none do.
            ///
            /// Fewer share a tile if the last round has fewer CTAs for each tile.
            #[limits(1..=16)]
            #[serde(skip_serializing_if = "Option::is_none")]
            split_k: Option<u32> as SPLIT_K,
            /// Whether the CTAs that share a tile are a cluster, so that their sums travel through shared memory.
            ///
            /// Only of `ag_gemm` and `gemm` for a constant number of rows, where 2 to 8 CTAs share every tile and the GPU runs all
            /// clusters at the same time.
            #[serde(skip_serializing_if = "Option::is_none")]
            cluster: Option<bool> as CLUSTER,
            /// The most buckets: ranges of rows for which the kernel has a plan of its own, if each call gives the rows.
            ///
            /// There are fewer where more would save nothing; 1 = one plan for any number of rows.
            #[limits(1..=4)]
            #[serde(skip_serializing_if = "Option::is_none")]
            buckets: Option<u32> as BUCKETS,
        }
    }
}

/// An operator of this kind. [`Op`] describes the computation of each operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GemmOp {
    /// [`Op::AgGemm`]
    AgGemm,
    /// [`Op::GemmRs`]
    GemmRs,
    /// [`Op::GemmAr`]
    GemmAr,
    /// [`Op::Gemm`]
    Gemm,
}

impl GemmOp {
    /// All operators of the kind.
    pub const ALL: [Self; 4] = [Self::AgGemm, Self::GemmRs, Self::GemmAr, Self::Gemm];

    /// The [`Op`] of this operator.
    #[must_use]
    pub const fn op(self) -> Op {
        match self {
            Self::AgGemm => Op::AgGemm,
            Self::GemmRs => Op::GemmRs,
            Self::GemmAr => Op::GemmAr,
            Self::Gemm => Op::Gemm,
        }
    }

    /// Whether ranks add up their partial results.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::GemmRs | Self::GemmAr)
    }

    /// Whether ranks exchange rows of A or parts of C.
    #[must_use]
    pub const fn communicates(self) -> bool {
        !matches!(self, Self::Gemm)
    }
}

impl fmt::Display for GemmOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op().name())
    }
}

choices! {
    /// How B lies in memory, rows of it contiguous.
    #[derive(Default)]
    pub enum BLayout {
        /// `[K, N]`, as in `A · B`.
        #[default]
        Kn = "kn",
        /// `[N, K]`, as a linear layer keeps its weight.
        Nk = "nk",
    }
}

choices! {
    /// A function of each element, in fp32.
    #[derive(Default)]
    pub enum Activation {
        /// `x`
        #[default]
        None = "none",
        /// `max(x, 0)`
        Relu = "relu",
        /// `x Φ(x)`, with an absolute error of at most 2.2e-7.
        Gelu = "gelu",
        /// `x σ(2 √(2/π) (x + 0.044715 x³))`, usually written with tanh.
        GeluTanh = "gelu_tanh",
        /// `x σ(x)`
        Silu = "silu",
    }
}

impl Epilogue {
    /// Whether rows are normalised.
    #[must_use]
    pub const fn normalises(&self) -> bool {
        !matches!(self.norm, Norm::None)
    }

    /// Whether C has elements of e4m3 with scales.
    #[must_use]
    pub const fn quantises(&self) -> bool {
        !matches!(self.result_scales, Scales::None)
    }

    /// Whether the sums of a tile become elements of e4m3 with scales. No norm comes between.
    #[must_use]
    pub const fn quantises_sums(&self) -> bool {
        self.quantises() && !self.normalises()
    }

    /// The number of columns of B that make one column of C.
    #[must_use]
    pub const fn weight_cols(&self) -> u32 {
        if self.swiglu { 2 } else { 1 }
    }

    /// The formula of the epilogue before a norm, such as `gelu(sum + bias) + residual`. `sum` alone if the epilogue is empty.
    #[must_use]
    pub fn formula(&self, sum: &str) -> String {
        let biased = match self.bias {
            true => format!("{sum} + bias"),
            false => sum.to_owned(),
        };
        let activated = match self.activation {
            _ if self.swiglu => format!("swiglu({biased})"),
            Activation::None => biased,
            activation => format!("{activation}({biased})"),
        };
        match self.residual {
            true => format!("{activated} + residual"),
            false => activated,
        }
    }
}

impl GemmConfig {
    /// The scales of a row of A with `k` columns, except one that all rows share.
    #[must_use]
    pub const fn row_scales(&self, k: u64) -> u64 {
        self.scales.of_row(k)
    }

    /// Bytes of a row of A with `k` columns on its way to other ranks: its elements, and behind them its scales.
    #[must_use]
    pub const fn sent_row_bytes(&self, k: u64) -> u64 {
        self.scales.sent_row_bytes(self.types().a, k)
    }

    /// The part of a kernel's name for types and epilogue, such as `_fp16_bias_gelu_fp32`. Empty for the defaults.
    #[must_use]
    pub fn suffix(&self) -> String {
        let (epilogue, c) = (&self.epilogue, self.types().c);
        let parts = [
            (epilogue.bias, "bias"),
            (
                epilogue.activation != Activation::None,
                epilogue.activation.name(),
            ),
            (epilogue.swiglu, "swiglu"),
            (epilogue.residual, "residual"),
            (
                c != self.dtype.of_results() && !epilogue.quantises(),
                c.name(),
            ),
            (epilogue.normalises(), epilogue.norm.name()),
            (epilogue.quantises(), "to"),
            (epilogue.quantises(), Dtype::E4m3.name()),
            (epilogue.quantises(), epilogue.result_scales.name()),
            (self.batch_invariant, "invariant"),
        ];
        let given = parts.into_iter().filter(|(given, _)| *given);
        given.fold(
            self.dtype.suffix() + &self.scales.suffix(),
            |suffix, (_, name)| format!("{suffix}_{name}"),
        )
    }
}

impl GemmShape {
    /// Rows of a full shard, ⌈M/W⌉. Only the last ranks may have fewer rows.
    #[must_use]
    pub const fn shard_rows(self, world: u32) -> u64 {
        self.m.div_ceil(world as u64)
    }
}

choices! {
    /// The engine that moves bytes to the peers of a node.
    pub enum Transfer {
        /// SMs store rows to every peer: communication CTAs, or warps of every CTA.
        SmPush = "sm_push",
        /// The copy engines push chunks; the kernel rings a doorbell, a host thread enqueues the copies.
        CopyEngine = "copy_engine",
    }
}
