//! What a person writes of the first half of a mixture of experts: `dispatch_gemm`.

use super::Op;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which operator that dispatches; see [`Op`] for what each computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchOp {
    /// [`Op::DispatchGemm`]
    DispatchGemm,
}

impl fmt::Display for DispatchOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Op::DispatchGemm.fmt(f)
    }
}

/// The most rows that all ranks' tokens can make on one rank, of `experts` over all of them.
#[must_use]
pub const fn all_rows(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> u64 {
    let here = experts / world as u64;
    let each = if top_k < here { top_k } else { here };
    max_tokens.saturating_mul(each).saturating_mul(world as u64)
}
