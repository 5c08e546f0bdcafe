//! What an mkernel kernel computes and how: pure data and arithmetic, no CUDA, no I/O.
//!
//! ```text
//! KernelConfig ─validate→ KernelSpec ─plan→ KernelPlan
//! ```
//!
//! The proc macro, the command line and the runtime all call this crate. A rule is therefore written once, and gives
//! the same diagnostic everywhere. [`KernelPlan`] has an example.
//!
//! Reading order: [`diagnostic`], [`config`], [`topology`], [`spec`], [`device`], [`plan`], [`abi`], [`fabric`],
//! [`fabric_test`].

pub mod abi;
mod arch;
pub mod config;
mod cost;
pub mod device;
mod devices;
pub mod diagnostic;
pub mod fabric;
pub mod fabric_test;
mod ops;
pub mod plan;
pub mod roofline;
pub mod spec;
pub mod topology;

pub use arch::{Arch, Backend};
pub use config::{
    Activation, AttentionConfig, AttentionOp, AttentionShape, AttentionTuning, BLayout,
    CollectiveConfig, CollectiveOp, CollectiveShape, CombineConfig, CombineOp, CombineShape, Dim,
    DispatchConfig, DispatchOp, DispatchShape, Dtype, Epilogue, Eps, Field, GemmConfig, GemmOp,
    GemmShape, KernelConfig, Layout, Limits, Norm, Op, OptionSpec, OptionTable, Options, Placement,
    Problem, Protocol, Scale, Shape, SumEpilogue, Tile, Transfer, Tuning, Value, Values, nearest,
};
pub use device::Device;
pub use diagnostic::{Diagnostic, Diagnostics};
pub use plan::KernelPlan;
pub use spec::{KernelSpec, WORLDS};
pub use topology::Topology;
