//! [`Stream`]: a stream of a simulated GPU, and its operations.

use super::completion::{Completion, CompletionRecord, moment_of};
use super::residency::{Residency, sms_of};
use super::user_object::UserObject;
use super::{Moment, TaskId, Work, World};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// An operation of a stream.
#[derive(Clone, Debug)]
pub(super) enum StreamOp {
    /// Work for the world.
    Work(Work),
    /// No work. The operation only marks a point in the stream.
    Marker,
    /// The end of a graph's launch. Until then, it retains the objects of the graph.
    Release(#[allow(dead_code, reason = "the objects are dropped with it")] Vec<Arc<UserObject>>),
    /// Frees an allocation.
    Free(u64),
}

impl StreamOp {
    pub fn is_kernel(&self) -> bool {
        matches!(self, Self::Work(Work::Kernel { .. }))
    }
}

/// An operation that has been enqueued.
#[derive(Debug)]
pub(super) struct QueuedOp {
    pub op: StreamOp,
    /// The operations of other streams that must end first.
    pub after: Vec<Completion>,
    /// What the program had seen when it enqueued the operation.
    pub host: Moment,
    /// Whether `host` includes what kernels had published to host memory by then.
    pub stamped: bool,
    pub end: Completion,
}

/// Work of a stream that has been started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub task: TaskId,
    pub sms: u32,
}

/// A stream of a GPU.
#[derive(Debug)]
pub(super) struct Stream {
    /// Whether this stream and the default stream wait for each other.
    pub blocking: bool,
    pub entries: VecDeque<QueuedOp>,
    /// The number of operations that have ended.
    pub ended: u64,
    pub running: Option<Running>,
    /// The completion of the last operation.
    pub tail: Option<Completion>,
    /// The moment after all operations that have ended.
    pub moment: Moment,
    pub destroyed: bool,
}

impl Stream {
    /// Starts the first operation if it can start. Returns none if it cannot, and otherwise the allocation to free, if
    /// any.
    pub fn start_next(
        &mut self,
        world: &mut World,
        residency: &mut Residency,
        device: u32,
        failed: bool,
    ) -> Option<Option<u64>> {
        let entry = self.entries.front_mut()?;
        if self.running.is_some()
            || entry
                .after
                .iter()
                .any(|completion| completion.get().is_none())
        {
            return None;
        }
        let sms = match &entry.op {
            StreamOp::Work(work) if !failed => sms_of(work),
            _ => 0,
        };
        if sms > 0 && !residency.take(device, sms) {
            return None;
        }
        let mut after = self.moment.clone();
        after.join(&entry.host);
        let ends = entry.after.drain(..);
        ends.for_each(|completion| after.join(&moment_of(&completion)));
        let freed = match &entry.op {
            StreamOp::Work(work) if !failed => {
                let task = world.start(device, work.clone(), &after);
                self.running = Some(Running { task, sms });
                return Some(None);
            }
            StreamOp::Work(_) | StreamOp::Marker | StreamOp::Release(_) => None,
            StreamOp::Free(address) => Some(*address),
        };
        self.moment = after;
        self.end_first(Vec::new());
        Some(freed)
    }

    /// Ends the first operation.
    pub fn end_first(&mut self, read: Vec<u8>) {
        if let Some(entry) = self.entries.pop_front() {
            self.ended += 1;
            let _ = entry.end.set(CompletionRecord {
                moment: self.moment.clone(),
                at: Instant::now(),
                read: Mutex::new(read),
            });
        }
    }
}
