//! What a person writes of the second half of a mixture of experts: `combine`.

use super::Op;
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
