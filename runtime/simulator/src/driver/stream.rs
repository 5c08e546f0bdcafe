//! [`Stream`]: a stream of a simulated GPU, and its operations.

use super::completion::{Completion, CompletionRecord, moment_of};
use super::launch_count::LaunchCount;
use super::residency::{Residency, sms_of};
use super::user_object::UserObject;
use super::{Moment, TaskId, Work, World};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// An operation of a stream.
#[derive(Clone, Debug)]
pub(super) enum StreamOp {
    /// Work for the world other than a kernel.
    Work(Work),
    /// A kernel, and the count of the kernel's launches.
    Kernel(Work, Arc<LaunchCount>),
    /// A point in the stream, without work.
    Marker,
    /// The end of a graph's launch. Until then, it retains the objects of the graph.
    Release(#[allow(dead_code, reason = "the objects are dropped with it")] Vec<Arc<UserObject>>),
    /// Frees an allocation.
    Free(u64),
}

impl StreamOp {
    pub fn is_kernel(&self) -> bool {
        matches!(self, Self::Kernel(..))
    }
}

/// An operation that has been enqueued.
#[derive(Debug)]
pub(super) struct QueuedOp {
    pub op: StreamOp,
    /// The operations of other streams that must end first.
    pub after: Vec<Completion>,
    /// The work that the program had seen when it enqueued the operation.
    pub host: Moment,
    /// Whether `host` includes the stores that kernels had published to host memory by then.
    pub stamped: bool,
    /// The count of the kernel's launches, from the start of the operation to its end.
    pub running: Option<Arc<LaunchCount>>,
    pub end: Completion,
}

impl QueuedOp {
    /// Records that the operation begins, and whether a kernel of the host has aborted.
    fn begin(&mut self, has_aborted: bool) {
        if let StreamOp::Kernel(_, launches) = &self.op {
            launches.begin(has_aborted);
            self.running = Some(launches.clone());
        }
    }
}

/// Work of a stream that has been started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub task: TaskId,
    pub sms: u32,
}

/// A kernel that was started while the kernel before it was running.
#[derive(Debug)]
pub(super) struct Early {
    pub running: Running,
    /// The moment of the operation's end, if the operation did not wait for the preceding kernel.
    pub ended: Option<Moment>,
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
    /// The kernel behind the running one, if it has been started early.
    pub early: Option<Early>,
    /// The completion of the last operation.
    pub tail: Option<Completion>,
    /// The moment after all operations that have ended.
    pub moment: Moment,
    pub destroyed: bool,
}

impl Stream {
    /// Starts the first operation if it can start. Returns `None` if the operation cannot start, and otherwise the
    /// allocation to free, if any.
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
            StreamOp::Work(work) | StreamOp::Kernel(work, _) if !failed => sms_of(work),
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
            StreamOp::Work(work) | StreamOp::Kernel(work, _) if !failed => {
                let task = world.start(device, work.clone(), &after);
                self.running = Some(Running { task, sms });
                entry.begin(world.has_aborted());
                return Some(None);
            }
            StreamOp::Work(_) | StreamOp::Kernel(..) | StreamOp::Marker | StreamOp::Release(_) => {
                None
            }
            StreamOp::Free(address) => Some(*address),
        };
        self.moment = after;
        self.end_first(Vec::new());
        Some(freed)
    }

    /// Returns whether a task is the running operation, or the kernel behind it.
    pub fn runs(&self, task: TaskId) -> bool {
        let early = self.early.as_ref().map(|early| early.running);
        [self.running, early]
            .iter()
            .flatten()
            .any(|running| running.task == task)
    }

    /// Starts the kernel behind the running one, if that allows it and the launch of the kernel does, too. The kernel gets
    /// its SMs from the running one when that ends.
    pub fn start_early(&mut self, world: &mut World, device: u32, failed: bool) -> bool {
        let (Some(running), None, false) = (self.running, &self.early, failed) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(1) else {
            return false;
        };
        let StreamOp::Kernel(work @ Work::Kernel { overlaps: true, .. }, _) = &entry.op else {
            return false;
        };
        let is_free = entry.after.iter().all(|end| end.get().is_some());
        if !is_free || !world.allows_overlap(running.task) {
            return false;
        }
        let mut after = self.moment.clone();
        after.join(&entry.host);
        let ends = entry.after.drain(..);
        ends.for_each(|completion| after.join(&moment_of(&completion)));
        let task = world.start_behind(device, work.clone(), &after, Some(running.task));
        self.early = Some(Early {
            running: Running {
                task,
                sms: sms_of(work),
            },
            ended: None,
        });
        true
    }

    /// Ends the running operation. The kernel that was started early is the running one from now on, unless it has ended,
    /// too. `has_aborted`: whether a kernel of the host has.
    pub fn end_running(&mut self, moment: &Moment, read: Vec<u8>, has_aborted: bool) {
        self.moment.join(moment);
        self.end_first(read);
        let early = self.early.take();
        self.running = early.as_ref().map(|early| early.running);
        if let (Some(_), Some(first)) = (self.running, self.entries.front_mut()) {
            first.begin(has_aborted);
        }
        if let Some(moment) = early.and_then(|early| early.ended) {
            self.running = None;
            self.moment.join(&moment);
            self.end_first(Vec::new());
        }
    }

    /// Ends the first operation.
    pub fn end_first(&mut self, read: Vec<u8>) {
        if let Some(entry) = self.entries.pop_front() {
            self.ended += 1;
            if let Some(launches) = &entry.running {
                launches.end();
            }
            let _ = entry.end.set(CompletionRecord {
                moment: self.moment.clone(),
                at: Instant::now(),
                read: Mutex::new(read),
            });
        }
    }
}
