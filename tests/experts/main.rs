//! Tests of `dispatch_gemm`, `combine`, `gemm_combine` and `moe_layer` on simulated GPUs of one node: layers with exactly known results, and
//! invalid operands.

mod faults;
mod layers;
mod not_finite;
mod returned;
mod router;
mod scales;
mod whole;
mod zeros;

use mkernel::spec::{BLayout, Dim, DispatchConfig, DispatchOp, DispatchShape};

/// A layer with SwiGLU of these sizes.
fn layer_of(shape: DispatchShape) -> DispatchConfig {
    DispatchConfig {
        experts: Dim::Static(shape.experts),
        top_k: Dim::Static(shape.top_k),
        max_tokens: Dim::Static(shape.max_tokens),
        hidden: Dim::Static(shape.hidden),
        intermediate: Dim::Static(shape.intermediate),
        b_layout: BLayout::Nk,
        swiglu: true,
        ..DispatchConfig::new(DispatchOp::MoeLayer)
    }
}
