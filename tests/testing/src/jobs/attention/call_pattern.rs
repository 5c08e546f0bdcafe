//! [`CallPattern`]: the way in which the ranks make the calls of a job.

/// The way in which the ranks make the calls of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPattern {
    /// Each rank launches its calls without a pause.
    BackToBack,
    /// Each rank pauses for random times between its calls.
    OutOfStep,
    /// The calls are captured in a graph, which is replayed.
    Graph,
    /// One rank makes no call.
    AbsentRank {
        /// The rank that makes no call.
        rank: u32,
    },
    /// One rank does not make the last call.
    AbsentFromLastCall {
        /// The rank that does not make the last call.
        rank: u32,
    },
}
