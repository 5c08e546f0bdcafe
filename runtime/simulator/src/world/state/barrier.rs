//! [`Barrier`]: an mbarrier, which counts arrivals and bytes in shared memory.

use super::counters::StepCounter;
use crate::world::clock::{Component, Published, View};

/// An mbarrier.
#[derive(Debug)]
pub struct Barrier {
    pub address: u32,
    /// The number of arrivals that complete a phase.
    pub count: u32,
    /// The number of arrivals that the current phase still lacks.
    pub pending: u32,
    /// The number of bytes that the current phase still lacks. It is negative while bytes have arrived before an
    /// arrival has announced them.
    pub bytes: i64,
    /// The number of completed phases.
    pub phases: u32,
    /// Counts the phases for the copies that signal the barrier. All threads that have waited for a phase know the
    /// writes of those copies.
    pub counter: StepCounter,
    /// The knowledge that the arrivals of the current phase have published.
    pub arriving: Arrivals<Published>,
    /// The knowledge that the arrivals of all completed phases have published.
    pub arrived: Arrivals<View>,
    /// Whether a fence has made its initialisation visible to TMA.
    pub fenced: bool,
    /// The threads that wait for the current phase.
    pub waiting: Vec<usize>,
}

/// The knowledge that arrivals at a barrier have published. A wait at the scope of a CTA acquires only the knowledge that threads
/// of its own CTA have published.
#[derive(Debug, Default)]
pub struct Arrivals<T> {
    pub of_own_cta: T,
    pub of_others: T,
}

impl Barrier {
    /// Returns the component and the step that waiting threads know when the current phase has completed.
    pub fn of_this_phase(&self) -> (Component, u32) {
        self.counter.at(self.phases + 1)
    }
}
