//! The graph of README.md.

use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::fused_kernel;
use std::sync::Arc;

#[fused_kernel(op = ag_gemm, m = dynamic, n = 64, k = 64, b_layout = nk)]
pub struct Layer;

/// A graph of one call, on a stream other than the default one. It keeps `layer` alive, but not `x`, `w` and `y`.
pub fn graph(
    layer: &Layer,
    stream: &Arc<CudaStream>,
    (x, w, y): (&CudaSlice<bf16>, &CudaSlice<bf16>, &mut CudaSlice<bf16>),
) -> Result<CudaGraph, Box<dyn std::error::Error>> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let call = layer.call(stream, LayerOperands { a: x, b: w, c: y });
    // SAFETY: the caller keeps x, w and y until the last replay is over, and orders other work on them before or after it.
    unsafe { call.capture() }?;
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
    graph.ok_or_else(|| "nothing was captured".into())
}
