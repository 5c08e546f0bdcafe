//! [`OperatorCore`]: the part of an operator that graphs can keep alive, and its launches.

use super::parts::{BoundParams, Parts};
use super::retired::{LaunchEnd, RetiredOperator};
use crate::deadlines::DRAIN_MARGIN;
use crate::driver::{Capture, LaunchMode, Uncaptured, UserStream};
use crate::error::Error;
use crate::order::{self, LaunchSource};
use crate::reaper;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The part of an operator that its owner and graphs share.
pub(super) struct OperatorCore {
    source: LaunchSource,
    state: Mutex<LaunchState>,
    pub parts: ManuallyDrop<Parts>,
}

/// The state that changes with launches.
#[derive(Default)]
pub(super) struct LaunchState {
    pub args: BoundParams,
    /// How calls are launched.
    pub mode: LaunchMode,
    /// The streams whose launches may not have ended. A stream is left out if a later launch in another stream waits
    /// for it.
    streams: Vec<UserStream>,
    /// The ends of the launches, after the owner has dropped the operator.
    ends: Vec<LaunchEnd>,
}

impl OperatorCore {
    pub fn new(parts: Parts) -> Self {
        Self {
            source: LaunchSource::new(),
            state: Mutex::default(),
            parts: ManuallyDrop::new(parts),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, LaunchState> {
        // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the ends of the owner's launches.
    pub fn end(&self) {
        let _uncaptured = Uncaptured::new();
        let shared = &self.parts.shared;
        let mut order = order::lock(&shared.order);
        let mut state = self.state();
        for stream in std::mem::take(&mut state.streams) {
            let end = LaunchEnd::of(&shared.ctx, stream);
            state.ends.push(end);
        }
        order.forget(self.source);
    }

    /// Enqueues a launch.
    ///
    /// # Safety
    /// The requirements are those of [`Operator::enqueue`](super::Operator::enqueue). `state` must hold the call's
    /// parameter.
    pub unsafe fn launch(
        &self,
        stream: &UserStream,
        order: &mut order::Order,
        state: &mut LaunchState,
    ) -> Result<(), Error> {
        let parts = &self.parts;
        // SAFETY: guaranteed by the caller. Streams without an owner are forgotten when the operator is dropped.
        unsafe { order.follow(stream, self.source)? };
        // The kernel waits for the launches in the other streams.
        state.streams.retain(|other| order.is_end(other));
        if !state.streams.contains(stream) {
            state.streams.push(stream.clone());
        }
        // SAFETY: the bytes have the layout of the plan. The workspaces and the page stay alive until the reaper has
        // seen the end of the work in `state.streams`, which now includes this stream. The caller keeps the operands
        // alive.
        unsafe {
            parts
                .kernel
                .launch(stream.handle(), &mut state.args.bytes, state.mode)?
        };
        if let (Some(job), Some(thread)) = (&parts.health.job, &parts.copies) {
            job.expect();
            thread.wake();
        }
        Ok(())
    }

    /// Captures a launch into a graph.
    ///
    /// # Safety
    /// The requirements are those of [`Self::launch`].
    pub unsafe fn capture(
        self: &Arc<Self>,
        stream: &UserStream,
        capture: &Capture,
        order: &mut order::Order,
        state: &mut LaunchState,
    ) -> Result<(), Error> {
        reaper::start()?;
        self.parts.health.capture();
        // SAFETY: guaranteed by the caller. The bytes have the layout of the plan. The workspaces and the page stay
        // alive as long as this value. The graph holds a reference to it for itself, for executable graphs made of it,
        // and for their launches. The caller keeps the operands alive.
        unsafe {
            if !order.follow_captured(stream, capture, self.source)? {
                capture.retain(reaper::keep(self.clone()), reaper::release)?;
            }
            self.parts
                .kernel
                .launch(stream.handle(), &mut state.args.bytes, state.mode)?;
            order.captured(stream, self.source)
        }
    }
}

impl Drop for OperatorCore {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ends = std::mem::take(&mut state.ends);
        // SAFETY: the parts are not used after this, since their owner is being dropped.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        let limit = parts.shared.gpu_timeout() + DRAIN_MARGIN;
        reaper::retire(Box::new(RetiredOperator::new(ends, parts)), limit);
    }
}
