//! What a person writes of the second half of a mixture of experts: `combine`.

use super::{Dim, Op, dimensions};
use crate::violation::Field;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which operator that combines; see [`Op`] for what each computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CombineOp {
    /// [`Op::Combine`]
    Combine,
}

impl fmt::Display for CombineOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Op::Combine.fmt(f)
    }
}

/// The weighted sums of what experts made of each token, back at the token's rank: bf16, fp32 accumulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CombineConfig {
    /// The operator.
    pub op: CombineOp,
    /// Experts over all ranks, …
    pub experts: Dim,
    /// … experts of each token, …
    pub top_k: Dim,
    /// … and the most tokens of a rank, as of the operator that dispatched them.
    pub max_tokens: Dim,
    /// Elements of a row.
    pub hidden: Dim,
    /// As of the operator that dispatched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u32>,
}

impl CombineConfig {
    /// The fields that a person may write of it.
    pub const FIELDS: [Field; 5] = [
        Field::Experts,
        Field::TopK,
        Field::MaxTokens,
        Field::Hidden,
        Field::MaxRows,
    ];

    /// All sizes dynamic.
    #[must_use]
    pub fn new(op: CombineOp) -> Self {
        Self {
            op,
            experts: Dim::DYNAMIC,
            top_k: Dim::DYNAMIC,
            max_tokens: Dim::DYNAMIC,
            hidden: Dim::DYNAMIC,
            max_rows: None,
        }
    }
}

/// Sizes of [`CombineConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CombineShape {
    /// Experts over all ranks.
    pub experts: u64,
    /// Experts of each token.
    pub top_k: u64,
    /// The most tokens of a rank.
    pub max_tokens: u64,
    /// Elements of a row.
    pub hidden: u64,
}

dimensions!(
    CombineConfig, CombineShape:
    Experts experts, TopK top_k, MaxTokens max_tokens, Hidden hidden
);
