//! [`Completion`]: the end of an operation of a stream. [`StreamPoint`]: a point that is reached when operations have
//! ended.

use super::Moment;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// The completion of an operation. It is set when the operation has ended.
pub(super) type Completion = Arc<OnceLock<CompletionRecord>>;

/// A point in streams: after all `completions`, and after `moment`.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamPoint {
    pub completions: Vec<Completion>,
    pub moment: Moment,
}

impl StreamPoint {
    /// Returns the point at the end of an operation.
    pub fn end_of(completion: &Completion) -> Self {
        Self {
            completions: vec![completion.clone()],
            moment: Moment::default(),
        }
    }

    /// Returns the time at which the last operation before this point ended, or `None` if an operation has not ended.
    pub fn at(&self) -> Option<Instant> {
        let ends = self
            .completions
            .iter()
            .map(|completion| Some(completion.get()?.at));
        ends.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Returns whether all operations before this point have ended.
    pub fn is_over(&self) -> bool {
        self.completions
            .iter()
            .all(|completion| completion.get().is_some())
    }
}

/// The result of an operation that has ended.
#[derive(Debug)]
pub(super) struct CompletionRecord {
    pub moment: Moment,
    pub at: Instant,
    pub read: Mutex<Vec<u8>>,
}

impl CompletionRecord {
    /// Returns the bytes of a download. Only the first call returns them.
    pub fn take_read(&self) -> Vec<u8> {
        std::mem::take(&mut *self.read.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns a completion if it is not set.
pub(super) fn pending(completion: Option<&Completion>) -> Option<Completion> {
    completion
        .filter(|completion| completion.get().is_none())
        .cloned()
}

/// Returns the moment at which an operation ended.
pub(super) fn moment_of(completion: &Completion) -> Moment {
    completion
        .get()
        .map(|end| end.moment.clone())
        .unwrap_or_default()
}
