//! The configuration of the second half of a mixture of experts: `combine`.

use crate::config::{Dim, Dtype, Field};
use crate::diagnostic::Diagnostics;
use crate::options::op::Op;
use crate::options::option::{OptionSpec, options};
use crate::options::option_type::OptionType;
use crate::options::value::Value;
use serde::{Deserialize, Serialize};
use std::fmt;

options! {
    /// The weighted sum of the experts' results of each token, on the token's rank: `dtype`, fp32 accumulate. Options have the
    /// values of the operator that dispatched the tokens.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct CombineConfig {
        op: CombineOp, sizes: CombineShape {
            /// Experts over all ranks.
            experts as =EXPERTS,
            /// Experts of each token.
            top_k as =TOP_K,
            /// The most tokens that a rank can have. Each call gives the number of tokens.
            max_tokens as =MAX_TOKENS,
            /// Elements of a token.
            hidden as =HIDDEN,
        }
        options {
            /// Type of the elements of rows and of their sums.
            ///
            /// Sums are fp32. fp16 has numbers up to 65504; larger results become infinite.
            #[among(Dtype::FACTORS)]
            #[serde(default)]
            dtype: Dtype as =DTYPE,
            /// The most rows of a rank, as given for the operator that dispatched the tokens.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            max_rows: Option<u32> as =MAX_ROWS,
            /// On one node, the most tokens of a rank whose sums travel as packets without flags; if absent 128, or 1024 for
            /// one rank.
            #[limits(0..=65536)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            low_latency_tokens: Option<u32> as LOW_LATENCY_TOKENS,
            /// Tokens of a put to another node; about 1 MiB of tokens if absent.
            #[limits(1..=65536)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            put_tokens: Option<u32> as =PUT_TOKENS,
            /// Puts of a peer for which a rank has room. Later puts wait until earlier puts have been acknowledged.
            #[limits(1..=65536)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            puts_in_flight: Option<u32> as =PUTS_IN_FLIGHT,
            /// Whether the bits of the sum of a token depend only on its rows and weights, the ranks that have its experts, the world
            /// and the nodes, and not on the other tokens, the token's rank or the plan.
            #[serde(default)]
            batch_invariant: bool as =BATCH_INVARIANT,
        }
    }
}

/// The operator. [`Op`] describes each operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CombineOp {
    /// [`Op::Combine`]
    Combine,
}

impl CombineOp {
    /// All operators of the kind.
    pub const ALL: [Self; 1] = [Self::Combine];

    /// The [`Op`] of this operator.
    #[must_use]
    pub const fn op(self) -> Op {
        match self {
            Self::Combine => Op::Combine,
        }
    }
}

impl fmt::Display for CombineOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op().name())
    }
}
