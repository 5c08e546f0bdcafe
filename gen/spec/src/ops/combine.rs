//! Operators that return what experts made of tokens: `combine`.

mod across;
pub(crate) mod body;
pub(crate) mod check;
pub(crate) mod config;
mod cost;
mod memory;
pub(crate) mod plan;

pub use body::{CombinePlan, LIST_HEADER_BYTES, Lists, OUTPUTS, SUMS_AHEAD};
pub use config::{CombineConfig, CombineOp, CombineShape};
