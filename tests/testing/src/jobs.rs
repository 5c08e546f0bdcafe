//! Jobs: back-to-back calls of operators with known results, on simulated GPUs and on GPUs.

pub mod attention;
pub mod collective;
mod data;
pub mod experts;
mod gemm;
mod graph;
mod kept;
mod machine;
mod mistakes;
pub mod overlap;
mod runs;
mod simulated;
mod turns;

pub use gemm::{Job, agreed};
pub use graph::replay;
pub use machine::{Machine, emulated, with_causes};
pub use mistakes::{all_are_found, apply, planted};
pub use runs::{
    Ages, all_are_right, all_are_right_when_old, always_right, in_parallel, none_fails,
};
pub use simulated::{
    AGES, CALLS, CALLS_AFTER, CALLS_BEFORE, Results, Simulated, Where, deadline, grow_old,
};
