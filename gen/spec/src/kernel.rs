//! Kernels of all kinds of operators: the configuration of a kernel, its checked specification, and its plan.

mod buckets;
mod choices;
mod choose;
mod config;
mod markdown;
mod memory;
mod op_plan;
mod plan;
mod problem;
mod schedule;
mod sized;
mod sizes;
mod spec;
mod tuned;

pub use config::KernelConfig;
pub use markdown::OptionTable;
pub use op_plan::OpPlan;
pub use plan::{Body, KernelPlan};
pub use problem::{Problem, Shape};
pub use schedule::NoSchedule;
pub use sized::SizedSpec;
pub use sizes::Sizes;
pub use spec::{KernelSpec, MAX_NODES, WORLDS};
pub use tuned::{Tuned, TunedError, TunedKernel, TunedTimes};
