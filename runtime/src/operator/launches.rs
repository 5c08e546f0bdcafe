//! [`Launches`]: the launches of one operator.

use super::core::OperatorCore;
use super::parts::BoundParams;
use crate::driver::{Capture, LaunchMode, Uncaptured, UserStream};
use crate::error::Error;
use crate::order::{self, LaunchSource};
use crate::reaper;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The launches of one operator. Equal operators share the core, but not the launches.
pub(super) struct Launches {
    source: LaunchSource,
    state: Mutex<LaunchState>,
}

/// The state that changes with launches.
#[derive(Default)]
pub(super) struct LaunchState {
    pub args: BoundParams,
    /// The mode in which calls are launched.
    pub mode: LaunchMode,
    /// The streams whose launches may not have ended. A stream is removed when a later launch in another stream waits for it.
    streams: Vec<UserStream>,
}

impl Launches {
    pub fn new() -> Self {
        Self {
            source: LaunchSource::new(),
            state: Mutex::default(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, LaunchState> {
        // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the ends of the launches. No launch may follow.
    pub fn end(&self, core: &OperatorCore) {
        let _uncaptured = Uncaptured::new();
        let shared = &core.parts.shared;
        let mut order = order::lock(&shared.order);
        core.end(std::mem::take(&mut self.state().streams));
        // SAFETY: streams without an owner stay alive until the operator is dropped, which is now.
        unsafe { order.forget(&shared.ctx, self.source) };
    }

    /// Enqueues a launch.
    ///
    /// # Safety
    /// As for [`Operator::enqueue`](super::Operator::enqueue). Also, `state` must hold the call's parameter.
    pub unsafe fn launch(
        &self,
        core: &OperatorCore,
        stream: &UserStream,
        order: &mut order::Order,
        state: &mut LaunchState,
    ) -> Result<(), Error> {
        let parts = &core.parts;
        // SAFETY: guaranteed by the caller. When the operator is dropped, events take the place of streams without an owner.
        unsafe { order.follow(stream, self.source)? };
        // The kernel waits for the launches in the other streams.
        state.streams.retain(|other| order.is_end(other));
        if !state.streams.contains(stream) {
            state.streams.push(stream.clone());
        }
        // SAFETY: the bytes have the layout of the plan. The workspaces and the page stay alive until the reaper has
        // seen the end of the work in `state.streams` of all operators that share them, which now includes this stream.
        // The caller keeps the operands alive.
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
    /// As for [`Self::launch`].
    pub unsafe fn capture(
        &self,
        core: &Arc<OperatorCore>,
        stream: &UserStream,
        capture: &Capture,
        order: &mut order::Order,
        state: &mut LaunchState,
    ) -> Result<(), Error> {
        reaper::start()?;
        core.parts.health.capture();
        // SAFETY: guaranteed by the caller. The bytes have the layout of the plan. The workspaces and the page stay
        // alive as long as the core. The graph holds a reference to it for itself, for executable graphs made of it,
        // and for their launches. The caller keeps the operands alive.
        unsafe {
            if !order.follow_captured(stream, capture, self.source)? {
                capture.retain(reaper::keep(core.clone()), reaper::release)?;
            }
            core.parts
                .kernel
                .launch(stream.handle(), &mut state.args.bytes, state.mode)?;
            order.captured(stream, self.source)
        }
    }
}
