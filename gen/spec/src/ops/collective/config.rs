//! The configuration of a collective: `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `all_to_all`.

use crate::abi::MAX_BUCKETS;
use crate::config::{Dim, Dtype, Eps, Field, Norm};
use crate::diagnostic::Diagnostics;
use crate::ops::gemm::Scales;
use crate::options::op::Op;
use crate::options::option::{OptionSpec, options};
use crate::options::option_type::{OptionType, choices};
use crate::options::value::Value;
use serde::{Deserialize, Serialize};
use std::fmt;

options! {
    /// A collective of rows of bf16, fp16 or fp32. Collectives that add nothing also have rows of e4m3.
    ///
    /// ```
    /// use mkernel_spec::{CollectiveConfig, CollectiveOp, Dim, Dtype};
    ///
    /// let logits = CollectiveConfig {
    ///     m: Dim::Static(16),
    ///     n: Dim::Static(128_256),
    ///     dtype: Dtype::Fp32,
    ///     ..CollectiveConfig::new(CollectiveOp::AllReduce)
    /// };
    /// assert_eq!(logits.protocol, None);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct CollectiveConfig {
        op: CollectiveOp, sizes: CollectiveShape {
            /// Rows of the tensor: for `all_gather` and `reduce_scatter` over all ranks, for `all_to_all` of X on each
            /// rank.
            m as =M,
            /// Columns of the tensor, a multiple of 8, or of 16 with e4m3.
            n as =N,
        }
        options {
            /// Type of the elements.
            ///
            /// `e4m3` is for operators that add nothing: `all_gather`, `broadcast` and `all_to_all`.
            #[among(Dtype::FLOATS)]
            #[serde(default)]
            dtype: Dtype as DTYPE,
            /// The elements of a row that share a scale, an fp32 number that travels with the row: all (row), or 128 (block); only
            /// with e4m3.
            ///
            /// The kernel also reads `x_scales` and writes `y_scales`, which `gemm` and `ag_gemm` with the same `scales` take as
            /// `a_scales`.
            #[among(Scales::OF_ROWS)]
            #[serde(default)]
            scales: Scales as =SCALES,
            /// How data travels: as packets that need no flag behind them (ll), or as plain data with a flag behind each chunk
            /// (simple).
            ///
            /// `ll` is for few bytes on one node: it has the lowest latency, but with `all_gather`, `broadcast` and
            /// `all_to_all` only half the bandwidth of `simple`. The tensor has at most 16 MiB.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            protocol: Option<Protocol> as PROTOCOL,
            /// The largest tensor that the planner lets travel as packets, in KiB. Up to this size, the cost model
            /// decides.
            ///
            /// Packets have two slots for the whole tensor from every source, so a smaller limit saves workspace.
            #[limits(1..=16384)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            packet_kib: Option<u32> as PACKET_KIB,
            /// How `all_reduce` adds up with `ll`: 1 = every rank adds up everything, 2 = each rank adds up its part and
            /// sends the sums to all ranks.
            #[limits([1, 2], "parts go to every rank, or to owners and from there to every rank")]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            shots: Option<u32> as =SHOTS,
            /// The most buckets: ranges of rows, each with a plan of its own, if each call gives the rows.
            ///
            /// The kernel has fewer buckets where more would save nothing; 1 = one plan for any number of rows.
            #[limits(1..=4)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            buckets: Option<u32> as =BUCKETS,
            /// The rank whose X every rank gets; 0 if absent. Only for `broadcast`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            root: Option<u32> as ROOT,
            /// Whether Y lies in symmetric memory, at the same offset on all ranks.
            ///
            /// Ranks of a node then store straight to each other's Y where data does not travel in packets. Only for
            /// `all_reduce`, `all_gather` and `all_to_all`.
            #[serde(default)]
            symmetric_result: bool as =SYMMETRIC_RESULT,
            /// Whether the bits of a row of Y depend only on the row's operands, the world and the nodes, and not on M, the other
            /// rows or the plan.
            #[serde(default)]
            batch_invariant: bool as =BATCH_INVARIANT,
        }
        groups {
            /// The operations between the sum and Y.
            #[serde(default)]
            epilogue: SumEpilogue,
        }
    }

    /// The operations on the sum of `all_reduce`: with a norm, `z = sum + bias + residual`, rounded once, is the new residual,
    /// and Y is its norm.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct SumEpilogue {
        options {
            /// Whether a `bias[N]`, the same on all ranks, is added; only with a norm.
            bias: bool as =BIAS,
            /// Whether a `residual`, with the rows and columns of Y and the same on all ranks, is added; only with a norm.
            ///
            /// The kernel may read a row of the residual on one rank only.
            residual: bool as =RESIDUAL,
            /// Whether rows are normalised: `rms` is RMSNorm.
            ///
            /// The kernel then also reads `weight[N]`, and writes the rows before the norm to `residual_out`.
            norm: Norm as NORM,
            /// The number above 0 that the norm adds to the mean of squares.
            eps: Eps as EPS,
            /// The elements of a row of Y that share a scale: all (row), or 128 (block). Y is then e4m3; only with a norm.
            ///
            /// The kernel also writes `y_scales`, which `gemm` and `ag_gemm` with the same `scales` take as `a_scales`.
            /// `residual_out` keeps the type of X.
            #[among(Scales::OF_ROWS)]
            result_scales: Scales as RESULT_SCALES,
        }
    }
}

/// Bytes of a vector, which a thread loads and stores at once.
pub(super) const VEC_BYTES: u64 = 16;
/// The most KiB of a tensor that packets carry.
pub(super) const MAX_LL_KIB: u32 = 16 << 10;

// Limits are literals, since documentation shows them.
const _: () = assert!(MAX_LL_KIB == 16384 && MAX_BUCKETS == 4);

/// The operator. [`Op`] describes each operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveOp {
    /// [`Op::AllReduce`]
    AllReduce,
    /// [`Op::AllGather`]
    AllGather,
    /// [`Op::ReduceScatter`]
    ReduceScatter,
    /// [`Op::Broadcast`]
    Broadcast,
    /// [`Op::AllToAll`]
    AllToAll,
}

impl CollectiveOp {
    /// All operators of the kind.
    pub const ALL: [Self; 5] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::AllToAll,
    ];

    /// The [`Op`] of this operator.
    #[must_use]
    pub const fn op(self) -> Op {
        match self {
            Self::AllReduce => Op::AllReduce,
            Self::AllGather => Op::AllGather,
            Self::ReduceScatter => Op::ReduceScatter,
            Self::Broadcast => Op::Broadcast,
            Self::AllToAll => Op::AllToAll,
        }
    }

    /// Whether ranks add up the tensors of all ranks.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter)
    }

    /// Whether ranks get shards that other ranks send: rows, or sums that other ranks have added up.
    #[must_use]
    pub const fn gathers(self) -> bool {
        !matches!(self, Self::ReduceScatter)
    }

    /// Whether a rank sends different shards of its tensor to different ranks, and not its shard to all ranks.
    #[must_use]
    pub const fn exchanges(self) -> bool {
        matches!(self, Self::AllToAll)
    }

    /// Whether ranks may store to each other's results in symmetric memory.
    #[must_use]
    pub const fn may_store_to_results(self) -> bool {
        matches!(self, Self::AllReduce | Self::AllGather | Self::AllToAll)
    }
}

impl fmt::Display for CollectiveOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op().name())
    }
}

choices! {
    /// How data travels.
    pub enum Protocol {
        /// Packets that need no flag behind them: Lamport packets for sums, and for other collectives packets of 8 bytes of
        /// data and 8 bytes of flags, as in NCCL's LL.
        Ll = "ll",
        /// Plain data, and a flag behind each chunk, as in NCCL's Simple.
        Simple = "simple",
    }
}

impl SumEpilogue {
    /// Whether rows are normalised.
    #[must_use]
    pub fn normalises(&self) -> bool {
        self.norm != Norm::None
    }

    /// The addends of `sum`, as in `sum + bias + residual`.
    #[must_use]
    pub fn addends(&self, sum: &str) -> String {
        let parts = [(self.bias, " + bias"), (self.residual, " + residual")];
        let given = parts.into_iter().filter(|(given, _)| *given);
        given.fold(sum.to_owned(), |sum, (_, addend)| sum + addend)
    }

    /// Whether normalised rows become elements of e4m3 with scales.
    #[must_use]
    pub fn quantises(&self) -> bool {
        self.result_scales != Scales::None
    }

    /// The part of a kernel's name for the epilogue, such as `_bias_residual_rms_to_e4m3_row`; empty if the epilogue does nothing.
    #[must_use]
    pub fn suffix(&self) -> String {
        let parts = [
            (self.bias, "bias"),
            (self.residual, "residual"),
            (self.normalises(), self.norm.name()),
            (self.quantises(), "to"),
            (self.quantises(), Dtype::E4m3.name()),
            (self.quantises(), self.result_scales.name()),
        ];
        let given = parts.into_iter().filter(|(given, _)| *given);
        given.map(|(_, name)| format!("_{name}")).collect()
    }
}

impl CollectiveConfig {
    /// Bytes of a row of `n` columns on its way to other ranks: its elements, and behind them its scales. Vectors of 16 bytes
    /// travel, and no vector has bytes of two rows.
    #[must_use]
    pub const fn sent_row_bytes(&self, n: u64) -> u64 {
        n * self.dtype.bytes() + self.scale_vecs(n) * VEC_BYTES
    }

    /// Vectors for the scales of a row of `n` columns.
    #[must_use]
    pub(super) const fn scale_vecs(&self, n: u64) -> u64 {
        (self.scales.of_row(n) * Dtype::Fp32.bytes()).div_ceil(VEC_BYTES)
    }

    /// The type of the elements of Y.
    #[must_use]
    pub fn result_dtype(&self) -> Dtype {
        match self.epilogue.quantises() {
            true => Dtype::E4m3,
            false => self.dtype,
        }
    }

    /// The rank that has the result of a broadcast over `world` ranks before the call; `None` for other operators. A world of
    /// one rank has no other root.
    #[must_use]
    pub fn root(&self, world: u32) -> Option<u32> {
        let given = self.root.filter(|_| world != 1);
        (self.op == CollectiveOp::Broadcast).then(|| given.unwrap_or(0))
    }
}

impl CollectiveShape {
    /// Rows of a full shard, ⌈M/W⌉. The last ranks may have fewer rows.
    #[must_use]
    pub const fn shard_rows(self, world: u32) -> u64 {
        self.m.div_ceil(world as u64)
    }
}
