//! The configuration, specification and plan of mkernel kernels: pure data and arithmetic, without CUDA and I/O.
//!
//! ```text
//! KernelConfig ─validate→ KernelSpec ─sized→ SizedSpec ─plan→ KernelPlan
//! ```
//!
//! The proc macro, the command line and the runtime all call this crate. A rule is therefore written once, and gives
//! the same diagnostic everywhere. [`KernelPlan`] has an example.
//!
//! Reading order: [`diagnostic`], [`config`], [`topology`], [`spec`], [`device`], [`plan`], [`abi`], [`fabric`],
//! [`fabric_test`].
//!
//! The source has layers. The lowest layer has names and types of options (`field`, `options`), the parts of plans (`parts`),
//! devices, and the ABI. Above this layer are the kinds of operators (`ops`), and above these the enums over all kinds (`kernel`).
//! The modules [`config`], [`spec`] and [`plan`] only re-export the names that users of the crate see.

pub mod abi;
mod arch;
mod cost;
pub mod device;
mod devices;
pub mod diagnostic;
pub mod fabric;
pub mod fabric_test;
mod field;
mod kernel;
mod limits;
mod ops;
mod options;
mod parts;
pub mod roofline;
pub mod topology;

/// Configurations as users write them in TOML, in `#[fused_kernel(...)]` or as flags, before any check.
pub mod config {
    pub use crate::arch::Tile;
    pub use crate::field::Field;
    pub use crate::kernel::{KernelConfig, OptionTable, Problem, Shape, Sizes};
    pub use crate::ops::attention::{
        AttentionConfig, AttentionOp, AttentionShape, AttentionTuning, Layout, Placement,
    };
    pub use crate::ops::collective::{
        CollectiveConfig, CollectiveOp, CollectiveShape, Protocol, SumEpilogue,
    };
    pub use crate::ops::combine::{CombineConfig, CombineOp, CombineShape};
    pub use crate::ops::dispatch::{
        DispatchConfig, DispatchOp, DispatchShape, Router, Scores, all_rows,
    };
    pub use crate::ops::gemm::{
        Activation, BLayout, Epilogue, GemmConfig, GemmOp, GemmShape, Scales, Transfer, Tuning,
    };
    pub use crate::options::{
        Dim, Dtype, DtypeInfo, Eps, LINE_BYTES, Limits, Norm, Op, OperatorConfig, OptionSpec,
        Options, Scale, TmaType, Value, Values, nearest,
    };
}

/// [`KernelSpec`]: a checked configuration. [`SizedSpec`]: a checked configuration whose sizes are known. The limits of checks.
pub mod spec {
    pub use crate::kernel::{KernelSpec, MAX_NODES, SizedSpec, WORLDS};
    pub use crate::limits::{DIM_STEP, MAX_DIM, MAX_ELEMS};
    pub use crate::ops::attention::{MAX_CACHED_ROWS, MAX_HEADS, MAX_SEQUENCES};
}

/// [`Schedule`](schedule::Schedule): the messages of a call, for models of time.
pub mod schedule {
    pub use crate::kernel::NoSchedule;
    pub use crate::parts::schedule::{
        Action, Counter, Expect, Lane, Message, Pace, Popularity, Routing, Schedule, Symmetry, Way,
    };
}

/// [`KernelPlan`]: how a kernel computes the problem of its spec.
pub mod plan {
    pub use crate::arch::{ArchSpec, ProducerRegisters, Registers};
    pub use crate::kernel::{Body, KernelPlan, OpPlan};
    pub use crate::kernel::{Tuned, TunedError, TunedKernel, TunedTimes};
    pub use crate::ops::attention::{
        AttentionPlan, AttentionSmem, AttentionWorkspace, KeyTile, PUSH_LEAD, QueryTile,
        SUB_TILE_BYTES, TILE_ROWS,
    };
    pub use crate::ops::collective::{CollectivePlan, Owners, RowWarps};
    pub use crate::ops::combine::{
        CombinePlan, CombineWorkspace, InternodeCombine, LIST_HEADER_BYTES, OUTPUTS, SUMS_AHEAD,
        SumPipeline,
    };
    pub use crate::ops::dispatch::{
        COPIES_AHEAD, DispatchPlan, DispatchTypes, DispatchWorkspace, ExpectedRouting, FAULT_WORDS,
        GROUP_ROWS, InternodeDispatch, TokenChunks,
    };
    pub use crate::ops::gemm::{
        Chunks, Cluster, CommSmem, CoreLayout, GemmPlan, GemmSmem, GemmTypes, GemmWorkspace,
        PlacedTile, Reduction, SCALE_BLOCK, SLOT_BYTES, ShardChunk, Split, TileOrder,
    };
    pub use crate::parts::{Agent, AgentKind, faults};
    pub use crate::parts::{BodyPlan, Copies, Launch, Workspace};
    pub use crate::parts::{CallSteps, Signal, Step, Wait, Whose, Word};
    pub use crate::parts::{Element, Index, Region, RegionId};
    pub use crate::parts::{MAX_PUT_BYTES, Network};
    pub use crate::parts::{Role, RoleKind};
    pub use crate::roofline::Traffic;
}

pub use arch::{Arch, Backend};
pub use config::{
    Activation, AttentionConfig, AttentionOp, AttentionShape, AttentionTuning, BLayout,
    CollectiveConfig, CollectiveOp, CollectiveShape, CombineConfig, CombineOp, CombineShape, Dim,
    DispatchConfig, DispatchOp, DispatchShape, Dtype, Epilogue, Eps, Field, GemmConfig, GemmOp,
    GemmShape, KernelConfig, Layout, Limits, Norm, Op, OptionSpec, OptionTable, Options, Placement,
    Problem, Protocol, Router, Scale, Scales, Scores, Shape, Sizes, SumEpilogue, Tile, Transfer,
    Tuning, Value, Values, nearest,
};
pub use device::Device;
pub use diagnostic::{Diagnostic, Diagnostics};
pub use plan::{KernelPlan, Tuned};
pub use spec::{KernelSpec, SizedSpec, WORLDS};
pub use topology::Topology;
