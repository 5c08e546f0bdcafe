//! `dispatch_gemm` and `combine` on simulated GPUs: whole layers with exact results, faults, and planted mistakes.

mod faults;
mod layers;
mod mutations;
