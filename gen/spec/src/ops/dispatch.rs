//! Operators that send tokens to experts: `dispatch_gemm`.

mod across;
pub(crate) mod body;
pub(crate) mod check;
pub(crate) mod config;
mod cost;
mod layout;
mod memory;
pub(crate) mod plan;
mod work;

pub use body::{Across, COPIES_AHEAD, DispatchPlan, FAULT_WORDS, GROUP_ROWS};
pub use config::{DispatchConfig, DispatchOp, DispatchShape, all_rows};
pub use work::Spread;
