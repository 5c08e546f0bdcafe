//! Operators that send tokens to experts: `dispatch_gemm`.

pub(crate) mod check;
pub(crate) mod chunks;
pub(crate) mod config;
mod cost;
mod internode;
mod layout;
mod memory;
pub(crate) mod op_plan;
pub(crate) mod plan;
mod roles;
pub(crate) mod router;
mod routing;
pub(crate) mod schedule;
mod types;
mod work;

pub use chunks::TokenChunks;
pub use config::{DispatchConfig, DispatchOp, DispatchShape, all_rows};
pub use memory::DispatchWorkspace;
pub use op_plan::{COPIES_AHEAD, DispatchPlan, FAULT_WORDS, GROUP_ROWS, InternodeDispatch};
pub use router::{Router, Scores};
pub(crate) use routing::{Routed, Tokens};
pub use types::DispatchTypes;
pub use work::ExpectedRouting;
