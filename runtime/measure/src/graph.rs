//! [`Graph`]: calls that are captured once and replayed.

use crate::Failure;
use mkernel::Communicator;
use mkernel::cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaGraph, CudaStream};
use std::sync::Arc;

/// A CUDA graph.
pub struct Graph(CudaGraph);

impl Graph {
    /// Captures what `enqueue` enqueues on `stream`, which must not be the default stream. All ranks must call this.
    ///
    /// # Errors
    /// The driver refuses the capture, or `enqueue` fails or enqueues nothing.
    pub fn capture(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        enqueue: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let enqueued = enqueue();
        // The capture is ended even if a call has failed. Otherwise the stream could not be used again.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        enqueued?;
        let graph = graph?.ok_or("the capture has no operations")?;
        if !ranks.is_simulated() {
            // Ranks may share a GPU. On a shared GPU, the first launch of a graph could wait for memory, and so for the replay
            // of another rank, which would wait for the replay of this rank.
            graph.upload()?;
            stream.synchronize()?;
            ranks.barrier()?;
        }
        Ok(Self(graph))
    }

    /// Launches the graph on `stream`, which belongs to the same context.
    ///
    /// # Errors
    /// The driver refuses the launch.
    pub fn launch(&self, stream: &CudaStream) -> Result<(), Failure> {
        // SAFETY: the graph has been instantiated and is alive. The driver keeps the resources of a launch until the
        // launch has ended.
        let code = unsafe { sys::cuGraphLaunch(self.0.cu_graph_exec(), stream.cu_stream()) };
        Ok(code.result()?)
    }
}
