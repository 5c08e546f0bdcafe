//! [`Communicator::capture`]: CUDA graphs of calls, and of other work on the same stream.

use crate::alloc::check_stream;
use crate::communicator::Communicator;
use crate::driver::named;
use crate::error::{CallError, Error};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError};
use std::sync::Arc;

/// While this value is alive, slices of the context track no events.
struct Untracked<'a>(Option<&'a CudaContext>);

impl<'a> Untracked<'a> {
    /// # Safety
    /// The caller must order all uses of slices of this context that are made meanwhile.
    unsafe fn new(context: &'a CudaContext) -> Self {
        let is_tracking = context.is_event_tracking();
        if is_tracking {
            // SAFETY: guaranteed by the caller.
            unsafe { context.disable_event_tracking() };
        }
        Self(is_tracking.then_some(context))
    }
}

impl Drop for Untracked<'_> {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            // SAFETY: the context tracked events before, so its other slices have them.
            unsafe { context.enable_event_tracking() };
        }
    }
}

/// A capture that ends when this value is dropped.
struct Capturing<'a>(&'a Arc<CudaStream>);

impl<'a> Capturing<'a> {
    fn begin(stream: &'a Arc<CudaStream>) -> Result<Self, Error> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        named("cuStreamBeginCapture", stream.begin_capture(mode))?;
        Ok(Self(stream))
    }

    fn end(self) -> Result<CudaGraph, Error> {
        let stream = self.0;
        std::mem::forget(self);
        let ended = stream.end_capture(CUgraphInstantiate_flags(0));
        let invalidated = DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        let ended = ended.and_then(|graph| graph.ok_or(invalidated));
        named("the end of the capture", ended)
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        // The captured work has failed, so its error is returned and this graph is dropped.
        let _ = self.0.end_capture(CUgraphInstantiate_flags(0));
    }
}

impl Communicator {
    /// Captures in a CUDA graph what `step` enqueues on `stream`: calls of operators by
    /// [`Call::capture`](crate::Call::capture), and copies, fills, kernels and host functions of the program. All ranks
    /// replay their graphs equally often.
    ///
    /// Slices of cudarc track events, for which a graph cannot wait: outside of this function, a copy or a fill that is
    /// captured fails with `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`. Here slices track no events until `step` returns.
    ///
    /// ```no_run
    /// # use mkernel::{Communicator, Error, Operand, Operator, half::bf16};
    /// # use mkernel::cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
    /// # use std::sync::Arc;
    /// # type Slice = CudaSlice<bf16>;
    /// # fn f(ranks: &Communicator, sum: &Operator, stream: &Arc<CudaStream>, x: &Slice, y: &mut Slice)
    /// # -> Result<CudaGraph, Box<dyn std::error::Error>> {
    /// // SAFETY: the caller keeps x and y until the last replay has ended, and orders other work on them.
    /// let graph = unsafe {
    ///     ranks.capture(stream, || {
    ///         stream.memset_zeros(y)?;
    ///         sum.call(stream).read(Operand::X, x).write(Operand::Y, y).capture()?;
    ///         Ok::<(), Box<dyn std::error::Error>>(())
    ///     })
    /// }?;
    /// graph.launch()?;
    /// # Ok(graph)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Call`] if the stream belongs to another GPU or is its default stream, the error of `step`, and errors of the
    /// driver. After an error the stream is not being captured any more.
    ///
    /// # Safety
    /// All memory that `step` uses must exist until the last replay has ended. Other work on that memory must be ordered
    /// before or behind the replays, and before or behind what `step` enqueues on streams that are not being captured. Until
    /// `step` has returned, no other thread may use slices of this GPU.
    pub unsafe fn capture<E: From<Error>>(
        &self,
        stream: &Arc<CudaStream>,
        step: impl FnOnce() -> Result<(), E>,
    ) -> Result<CudaGraph, E> {
        check_stream(self.shared(), stream)?;
        if stream.cu_stream().is_null() {
            return Err(Error::Call(CallError::DefaultStreamCaptured).into());
        }
        // SAFETY: the caller orders all uses of slices, and other threads make none.
        let _untracked = unsafe { Untracked::new(self.context()) };
        let capturing = Capturing::begin(stream)?;
        step()?;
        Ok(capturing.end()?)
    }
}
