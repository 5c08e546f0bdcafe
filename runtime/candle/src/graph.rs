//! Calls in CUDA graphs.

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::error;
use crate::ranks::Ranks;
use candle_core::{Device, Error, Result, bail};
use mkernel::cudarc::driver::CudaGraph;

/// A CUDA graph of work with tensors, made by [`Ranks::capture`].
pub struct Graph(CudaGraph);

impl Graph {
    /// Enqueues all work of the graph on the stream of the device. All ranks replay their graphs equally often.
    ///
    /// # Errors
    /// Fails if the driver refuses. Failures on the GPU are errors of [`Ranks::synchronize`].
    pub fn replay(&self) -> Result<()> {
        self.0.launch().map_err(error::of_driver)
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Graph")
    }
}

/// An error of a step, or of its capture.
struct Failure(Error);

impl From<mkernel::Error> for Failure {
    fn from(error: mkernel::Error) -> Self {
        Self(error::of_mkernel(error))
    }
}

impl Ranks {
    /// Captures the work of `step` in a CUDA graph: calls of operators, and operations of candle. This function calls
    /// `step` twice. The work of the first call is done at once, so that operators are prepared and candle's kernels are
    /// loaded. The work of the second call is captured.
    ///
    /// `step` must write its results to tensors that exist before the call (`Tensor::slice_set`, `Tensor::scatter_set`). Tensors
    /// that `step` creates have memory only within a replay.
    ///
    /// # Errors
    /// Fails if the device is the CPU, if its stream cannot be captured, or if `step` fails. [`device_for_graphs`] makes a
    /// suitable device.
    ///
    /// # Safety
    /// All tensors that `step` uses and does not create must be alive until the last replay has ended. `step` must drop the
    /// tensors that it creates, and no other tensors. Other work with these tensors must be ordered before or after the replays,
    /// by the stream of the device.
    pub unsafe fn capture(&self, mut step: impl FnMut() -> Result<()>) -> Result<Graph> {
        let stream = self.stream();
        if !matches!(self.device(), Device::Cuda(_)) {
            bail!(
                "operations on the CPU cannot be captured in a CUDA graph; call them at each step instead"
            );
        }
        if stream.context().is_event_tracking() {
            bail!(
                "a graph cannot wait for the events of cudarc; make the device by mkernel_candle::device_for_graphs, \
                 before any tensor"
            );
        }
        #[cfg(feature = "cuda")]
        let _kernel_parameters = cuda::keep_kernel_parameters(self.device())?;
        step()?;
        self.synchronize()?;
        let step = || {
            self.set_captures(true);
            let captured = step();
            self.set_captures(false);
            captured.map_err(Failure)
        };
        // SAFETY: the caller guarantees it. The tensors of this device are used on its stream only.
        let graph = unsafe { self.communicator().capture(stream, step) };
        graph.map(Graph).map_err(|Failure(error)| error)
    }
}

/// Makes a device of candle whose work can be captured: it has a stream of its own, and its tensors do not track events.
///
/// # Errors
/// Fails if the host has no such GPU, or if this crate was built without the feature `cuda`.
///
/// # Safety
/// Tensors of this device must be used on its stream only, which [`Ranks`] of the device do. See
/// `CudaDevice::disable_event_tracking`.
pub unsafe fn device_for_graphs(ordinal: usize) -> Result<Device> {
    let device = Device::new_cuda_with_stream(ordinal)?;
    // SAFETY: the caller guarantees it.
    #[cfg(feature = "cuda")]
    unsafe {
        cuda::disable_event_tracking(&device)?;
    }
    Ok(device)
}
