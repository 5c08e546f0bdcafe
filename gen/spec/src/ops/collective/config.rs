//! What a person writes of a collective: `all_reduce`, `all_gather`, `reduce_scatter`.

use crate::config::op::operators;
use crate::config::option::{OptionSpec, options};
use crate::config::option_type::{OptionType, choices};
use crate::config::values::{Limits, Written};
use crate::config::{Dim, Dtype, Field};
use crate::diagnostic::Diagnostics;
use serde::{Deserialize, Serialize};

options! {
    /// A collective of rows of bf16 or fp32.
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
            /// Rows of the tensor; of `all_gather` and `reduce_scatter`, over all ranks.
            m as =M,
            /// Columns of the tensor, a multiple of 8.
            n as =N,
        }
        options {
            /// Type of the elements.
            #[serde(default)]
            dtype: Dtype as DTYPE,
            /// How data travels: as packets that carry their own flags (ll), or as plain data with a flag behind each chunk
            /// (simple).
            ///
            /// `ll` is for few bytes on one node: it has half the bandwidth and the shortest way.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            protocol: Option<Protocol> as PROTOCOL,
            /// How `all_reduce` adds up with `ll`: 1 = every rank adds up everything, 2 = each rank its part, which it then
            /// sends to all.
            #[limits(Limits::OneOf(&[1, 2], "parts go to every rank, or to owners and from there to every rank"))]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            shots: Option<u32> as =SHOTS,
            /// Whether Y lies in symmetric memory, at the same offset on all ranks.
            ///
            /// Ranks of a node then store straight to each other's Y where data does not travel in packets. Only of
            /// `all_reduce` and `all_gather`.
            #[serde(default)]
            symmetric_result: bool as =SYMMETRIC_RESULT,
        }
    }
}

operators!(CollectiveOp: AllReduce, AllGather, ReduceScatter);

impl CollectiveOp {
    /// Whether ranks add up what each of them gives.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter)
    }

    /// Whether every rank gets the whole tensor.
    #[must_use]
    pub const fn gathers(self) -> bool {
        matches!(self, Self::AllReduce | Self::AllGather)
    }
}

choices! {
    /// How data travels.
    pub enum Protocol {
        /// Packets of 8 bytes of data and 8 bytes of flags, as NCCL's LL.
        Ll = "ll",
        /// Plain data, and a flag behind each chunk, as NCCL's Simple.
        Simple = "simple",
    }
}

impl CollectiveShape {
    /// Rows of a shard, ⌈M/W⌉: every rank but perhaps the last ones has as many.
    #[must_use]
    pub const fn shard_rows(self, world: u32) -> u64 {
        self.m.div_ceil(world as u64)
    }
}
