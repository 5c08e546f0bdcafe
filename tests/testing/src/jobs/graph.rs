//! Calls that are captured in a CUDA graph and replayed.

use crate::graph::Graph;
use crate::lab::Failure;
use mkernel::cudarc::driver::CudaStream;
use mkernel::spec::abi::OperandSpec;
use mkernel::{Communicator, Operator, operands::RawOperand};
use std::sync::Arc;

/// Returns a stream for calls of a job. The default stream cannot be captured in a graph.
///
/// # Errors
/// The driver creates no stream.
pub fn stream_of(ranks: &Communicator, is_graph: bool) -> Result<Arc<CudaStream>, Failure> {
    Ok(match is_graph {
        true => ranks.context().new_stream()?,
        false => ranks.default_stream(),
    })
}

/// Captures a call for each element of `addresses`, and replays the graph twice. An element has the addresses of the
/// operands of a call, in the order of the plan.
///
/// # Errors
/// A call cannot be captured, or the driver refuses the graph.
pub fn replay(
    ranks: &Communicator,
    operator: &Operator,
    stream: &Arc<CudaStream>,
    addresses: &[Vec<u64>],
) -> Result<(), Failure> {
    let specs = operator.plan().operands();
    let graph = Graph::capture(ranks, stream, || {
        for of_call in addresses {
            let operand = |(ptr, spec): (&u64, &OperandSpec)| RawOperand {
                ptr: *ptr,
                row_stride_elems: spec.cols,
            };
            let operands: Vec<_> = of_call.iter().zip(specs).map(operand).collect();
            // SAFETY: the operands follow the plan, in its order. The caller drops them after this function has waited
            // for the stream.
            unsafe { operator.launch_raw(stream.cu_stream(), &operands) }?;
        }
        Ok(())
    })?;
    graph.launch(stream)?;
    graph.launch(stream)?;
    // The graph is destroyed when this function returns, so the replays have to end first.
    Ok(ranks.synchronize(stream)?)
}
