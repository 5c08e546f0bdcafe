//! Tests of `dispatch_gemm`, `combine` and `moe_layer` on simulated GPUs of one node: layers with exactly known results, and
//! invalid operands.

mod faults;
mod layers;
mod not_finite;
mod router;
mod scales;
mod whole;
mod zeros;
