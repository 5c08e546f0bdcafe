//! Calls in a graph.

use mkernel::cudarc::driver::CudaStream;
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::spec::abi::OperandSpec;
use mkernel::{Operator, RawOperand};
use std::sync::Arc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Captures calls on operands at `addresses`, and replays them twice.
pub fn replay(
    operator: &Operator,
    stream: &Arc<CudaStream>,
    addresses: &[Vec<u64>],
) -> Result<(), Failure> {
    let specs = &operator.plan().operands;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    for of_call in addresses {
        let operand = |(ptr, spec): (&u64, &OperandSpec)| RawOperand {
            ptr: *ptr,
            row_stride_elems: spec.cols,
        };
        let operands: Vec<_> = of_call.iter().zip(specs).map(operand).collect();
        // SAFETY: the operands are the plan's, in its order; the caller waits for the stream before it drops them.
        unsafe { operator.launch_raw(stream.cu_stream(), &operands) }?;
    }
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
    let graph = graph.ok_or("nothing was captured")?;
    graph.launch()?;
    graph.launch()?;
    // The graph goes when this ends.
    Ok(stream.synchronize()?)
}
