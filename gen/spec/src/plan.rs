//! [`KernelPlan`]: how a kernel computes what its spec says.

mod buckets;
mod choose;
mod copies;
pub(crate) mod id;
mod kernel;
mod memory;
pub(crate) mod network;
mod op_plan;
pub(crate) mod region;
mod registers;
mod role;
mod wait_graph;
pub(crate) mod waits;
mod workspace;

pub use crate::ops::attention::{AttentionPlan, PUSH_LEAD, SUB_TILE_BYTES, TILE_ROWS};
pub use crate::ops::collective::{CollectivePlan, RowWarps};
pub use crate::ops::combine::{
    CombinePlan, InternodeCombine, LIST_HEADER_BYTES, OUTPUTS, SUMS_AHEAD, SumPipeline,
};
pub use crate::ops::dispatch::{
    COPIES_AHEAD, DispatchPlan, DispatchTypes, ExpectedRouting, FAULT_WORDS, GROUP_ROWS,
    InternodeDispatch, TokenChunks,
};
pub use crate::ops::gemm::{
    Chunks, Cluster, CoreLayout, GemmPlan, GemmTypes, Reduction, SLOT_BYTES, Split, THREADS,
    TileOrder,
};
pub use crate::roofline::Traffic;
pub use copies::Copies;
pub use kernel::KernelPlan;
pub use network::{MAX_PUT_BYTES, Network};
pub use op_plan::OpPlan;
pub use region::{Element, Index, Region, RegionId};
pub use registers::Registers;
pub use role::{Role, RoleKind};
pub use wait_graph::{Agent, faults};
pub use waits::{CallSteps, Signal, Step, Wait, Whose, Word};
pub use workspace::Workspace;
