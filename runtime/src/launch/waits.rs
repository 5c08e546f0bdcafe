//! [`Waits`]: the stream that waits for other streams' work on the operands of a call.

use crate::driver::{self, Uncaptured};
use crate::error::Error;
use crate::reaper::{self, GpuUse, Retired};
use cudarc::driver::{CudaEvent, CudaStream, SyncOnDrop};
use std::sync::Arc;
use std::time::Duration;

/// The stream that waits for other streams' work on the operands of a call. A stream that is being captured must not wait for
/// events from outside of the capture, so another stream waits for them.
pub(super) struct Waits<'a> {
    stream: &'a Arc<CudaStream>,
    /// The stream beside the call's stream, if the call's stream was being captured when the first operand was passed.
    beside: Option<Arc<CudaStream>>,
    is_decided: bool,
}

impl<'a> Waits<'a> {
    pub const fn of(stream: &'a Arc<CudaStream>) -> Self {
        Self {
            stream,
            beside: None,
            is_decided: false,
        }
    }

    /// Returns the stream beside the call's stream, or `None` if the call's stream may wait.
    pub fn beside(&mut self) -> Result<Option<&Arc<CudaStream>>, Error> {
        let context = self.stream.context();
        // If cudarc does not track events, nothing waits for events, and creating a stream would enable the tracking.
        if !self.is_decided && context.is_managing_stream_synchronization() {
            driver::bind(context)?;
            // SAFETY: the stream is borrowed, so it is alive.
            if unsafe { driver::is_capturing(self.stream.cu_stream())? } {
                let _uncaptured = Uncaptured::new();
                let created = context.new_stream();
                let call = "creating a stream beside one that is being captured";
                self.beside = Some(driver::named(call, created)?);
            }
            self.is_decided = true;
        }
        Ok(self.beside.as_ref())
    }

    /// Returns whether operands were passed while the call's stream was being captured, so that the stream does not wait for
    /// them.
    pub const fn are_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// Makes the capture wait for the stream beside, if that stream has become part of the capture. No operand is passed after
    /// this call.
    pub fn join(&mut self) -> Result<(), Error> {
        let _uncaptured = self.beside.is_some().then(Uncaptured::new);
        let Some(beside) = self.beside.take() else {
            return Ok(());
        };
        // SAFETY: the stream is alive.
        if unsafe { driver::is_capturing(beside.cu_stream())? } {
            // Work that was captured before also uses a slice, so this stream has become part of the capture.
            let call = "joining a stream beside one that is being captured";
            driver::named(call, self.stream.join(&beside))?;
            reaper::retire(Box::new(Waiting(beside)), Duration::ZERO);
        }
        Ok(())
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        // The call already has an error, or is dropped without a launch.
        if let Err(error) = self.join() {
            tracing::warn!(%error, "the capture of a call that was not made may fail");
        }
    }
}

/// A stream that takes part in a capture because it waited for captured work. It must live until the capture ends.
struct Waiting(Arc<CudaStream>);

impl Retired for Waiting {
    fn name(&self) -> String {
        "a stream of a capture".to_owned()
    }

    fn is_unused(&mut self) -> Result<GpuUse, Error> {
        driver::bind(self.0.context())?;
        // SAFETY: the stream is alive.
        Ok(match unsafe { driver::is_capturing(self.0.cu_stream())? } {
            true => GpuUse::Capturing,
            false => GpuUse::Unused,
        })
    }
}

/// Returns the event that `guard` would record when dropped, and prevents that recording. The caller records the event with
/// [`record`] behind the kernel, or never if no kernel is launched.
pub(super) fn event_of<'a>(mut guard: SyncOnDrop<'a>) -> Option<&'a CudaEvent> {
    match &mut guard {
        SyncOnDrop::Record(target) => target.take().map(|(event, _)| event),
        SyncOnDrop::Sync(_) => None,
    }
}

/// Makes other streams wait for the work in `stream` before they use the slice of `event`.
pub(super) fn record(event: &CudaEvent, stream: &CudaStream) {
    drop(SyncOnDrop::Record(Some((event, stream))));
}
