//! Collectives of tensors without a product: `all_reduce`, `all_gather` and `reduce_scatter`.

pub(crate) mod body;
pub(crate) mod check;
pub(crate) mod config;
mod cost;
mod layout;
mod memory;
pub(crate) mod plan;

pub use body::CollectivePlan;
pub use config::{CollectiveConfig, CollectiveOp, CollectiveShape, Protocol};
