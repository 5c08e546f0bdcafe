//! Operators that return the results of experts to tokens: `combine`.

pub(crate) mod check;
pub(crate) mod config;
mod cost;
mod internode;
mod memory;
pub(crate) mod op_plan;
pub(crate) mod plan;
mod roles;
pub(crate) mod schedule;

pub use config::{CombineConfig, CombineOp, CombineShape};
pub use memory::CombineWorkspace;
pub use op_plan::{
    CombinePlan, InternodeCombine, LIST_HEADER_BYTES, OUTPUTS, SUMS_AHEAD, SumPipeline,
};
