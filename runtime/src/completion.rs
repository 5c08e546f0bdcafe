//! [`Completion`]: a future that is ready when the work of a stream is done.

use crate::deadlines::DRAIN_MARGIN;
use crate::driver::{self, Event, Uncaptured};
use crate::error::{CallError, Error};
use crate::shared::Shared;
use cudarc::driver::CudaStream;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The task that waits for the end of the work, if it is waiting.
type WaitingTask = Arc<Mutex<Option<Waker>>>;

/// A future that is ready when the work that was in a stream is done. Its output is the result of
/// [`Communicator::check`](crate::Communicator::check). [`Communicator::completion`](crate::Communicator::completion) creates
/// it.
///
/// The future needs no thread. A callback of the CUDA driver wakes the task when the stream has reached that point, also after
/// a failure of the GPU. Simulated GPUs advance only while a thread waits for them, so on simulated GPUs the task is woken at
/// once and polls.
#[must_use = "futures do nothing unless they are polled"]
pub struct Completion {
    shared: Arc<Shared>,
    event: Event,
    started: Instant,
    limit: Duration,
    task: WaitingTask,
}

impl Completion {
    /// Records the work that is in `stream` now.
    pub(crate) fn new(shared: &Arc<Shared>, stream: &CudaStream) -> Result<Self, Error> {
        driver::bind(&shared.ctx)?;
        let _uncaptured = Uncaptured::new();
        // SAFETY: the stream is borrowed, so it is alive.
        if unsafe { driver::is_capturing(stream.cu_stream())? } {
            return Err(Error::Call(CallError::WaitInCapture));
        }
        let event = Event::new(&shared.ctx)?;
        // SAFETY: the stream is alive. All streams of the communicator's GPU belong to its primary context.
        unsafe { event.record(stream.cu_stream())? };
        let task = WaitingTask::default();
        if shared.simulated.is_none() {
            let waiting = task.clone();
            let wake = move || {
                let task = waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                task.into_iter().for_each(Waker::wake);
            };
            // SAFETY: the stream is alive.
            unsafe { driver::call_back(stream.cu_stream(), wake)? };
        }
        Ok(Self {
            shared: shared.clone(),
            event,
            started: Instant::now(),
            limit: shared.gpu_timeout() + DRAIN_MARGIN,
            task,
        })
    }

    fn is_over(&self) -> Result<bool, Error> {
        driver::bind(&self.shared.ctx)?;
        let _uncaptured = Uncaptured::new();
        self.event.is_over()
    }
}

impl Future for Completion {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The task is registered before the event is queried, so work that ends in between wakes the task.
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        match self.is_over() {
            Ok(true) => return Poll::Ready(self.shared.check()),
            // If the GPU failed, the report of its kernel may have the cause.
            Err(error) => return Poll::Ready(self.shared.check().and(Err(error))),
            Ok(false) => {}
        }
        let waited = self.started.elapsed();
        if waited >= self.limit {
            let busy = Error::StillBusy { waited };
            return Poll::Ready(self.shared.check().and(Err(busy)));
        }
        if self.shared.simulated.is_some() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Completion(rank {})", self.shared.rank)
    }
}
