//! `dispatch_gemm` and `combine` on simulated GPUs: whole layers with exact results, faults, and planted mistakes.

mod faults;
#[allow(dead_code, reason = "several nodes are for `multinode`")]
mod layer;
mod layers;
mod mutations;
#[path = "../simulated/mod.rs"]
mod simulated;
