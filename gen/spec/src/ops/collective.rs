//! Collectives of tensors without a product: `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast` and `all_to_all`.

pub(crate) mod check;
pub(crate) mod config;
mod cost;
mod layout;
mod memory;
pub(crate) mod op_plan;
pub(crate) mod plan;
mod roles;
pub(crate) mod schedule;

pub use config::{CollectiveConfig, CollectiveOp, CollectiveShape, Protocol, SumEpilogue};
pub use op_plan::{CollectivePlan, Owners, RowWarps};
