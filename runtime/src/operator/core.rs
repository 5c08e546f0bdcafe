//! [`OperatorCore`]: the kernel of an operator and its memory, which equal operators and graphs share.

use super::parts::Parts;
use super::retired::{LaunchEnd, RetiredOperator};
use crate::deadlines::DRAIN_MARGIN;
use crate::driver::{self, UserStream};
use crate::reaper;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The kernel of an operator and its memory. Operators of a communicator with equal identities share one core, and so do the
/// graphs that have captured their launches.
pub(crate) struct OperatorCore {
    /// The ends of the launches of operators that were dropped.
    ends: Mutex<Vec<LaunchEnd>>,
    pub(super) parts: ManuallyDrop<Parts>,
}

impl OperatorCore {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            ends: Mutex::default(),
            parts: ManuallyDrop::new(parts),
        }
    }

    /// Returns the number of the operator, which is the same on all ranks.
    pub fn number(&self) -> u32 {
        self.parts.health.operator.number()
    }

    /// Records the ends of the launches in `streams` of an operator that is being dropped.
    pub(super) fn end(&self, streams: Vec<UserStream>) {
        let ctx = &self.parts.shared.ctx;
        let mut ends = self.ends();
        // Many operators may come and go while one operator keeps the core.
        if driver::bind(ctx).is_ok() {
            ends.retain(|end| !end.is_over());
        }
        ends.extend(streams.into_iter().map(|stream| LaunchEnd::of(ctx, stream)));
    }

    fn ends(&self) -> MutexGuard<'_, Vec<LaunchEnd>> {
        // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OperatorCore {
    fn drop(&mut self) {
        let ends = std::mem::take(&mut *self.ends());
        // SAFETY: the parts are not used after this, since their owner is being dropped.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        let limit = parts.shared.gpu_timeout() + DRAIN_MARGIN;
        reaper::retire(Box::new(RetiredOperator::new(ends, parts)), limit);
    }
}
