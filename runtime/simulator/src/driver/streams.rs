//! [`Streams`]: the streams of a simulated host, their operations, and the order in which operations start.

use super::completion::{Completion, CompletionRecord, StreamPoint, moment_of, pending};
use super::result::{Code, Result};
use super::user_object::UserObject;
use super::{Moment, Outcome, TaskId, Work, World};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Identifies a stream by its device and its handle. The default stream of a device has handle 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StreamId {
    pub device: u32,
    pub handle: u64,
}

impl StreamId {
    /// Returns the default stream of a device.
    pub fn default_of(device: u32) -> Self {
        Self { device, handle: 0 }
    }
}

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
    fn is_kernel(&self) -> bool {
        matches!(self, Self::Work(Work::Kernel { .. }))
    }
}

/// An operation that has been enqueued.
#[derive(Debug)]
struct QueuedOp {
    op: StreamOp,
    /// The operations of other streams that must end first.
    after: Vec<Completion>,
    /// What the program had seen when it enqueued the operation.
    host: Moment,
    /// Whether `host` includes what kernels had published to host memory by then.
    stamped: bool,
    end: Completion,
}

/// A stream of a GPU.
#[derive(Debug)]
struct Stream {
    /// Whether this stream and the default stream wait for each other.
    blocking: bool,
    entries: VecDeque<QueuedOp>,
    running: Option<TaskId>,
    /// The completion of the last operation.
    tail: Option<Completion>,
    /// The moment after all operations that have ended.
    moment: Moment,
    destroyed: bool,
}

/// The result of [`Streams::start`].
#[derive(Debug, Default)]
pub(super) struct StartResult {
    /// Whether any operation has started or ended.
    pub any: bool,
    /// The allocations that must be freed now.
    pub freed: Vec<u64>,
}

/// The streams of a host.
#[derive(Debug, Default)]
pub(super) struct Streams {
    // Ordered by device and handle, so that the order of starts does not depend on the order of the program's threads.
    streams: BTreeMap<StreamId, Stream>,
    /// Whether an operation has been enqueued since the last start.
    has_new: bool,
}

impl Streams {
    /// Adds a stream.
    pub fn add(&mut self, id: StreamId, blocking: bool) {
        let stream = Stream {
            blocking,
            entries: VecDeque::new(),
            running: None,
            tail: None,
            moment: Moment::default(),
            destroyed: false,
        };
        self.streams.insert(id, stream);
    }

    /// Returns the stream with a handle.
    pub fn find(&self, handle: u64) -> Result<StreamId> {
        let found = self
            .streams
            .iter()
            .find(|(id, stream)| id.handle == handle && !stream.destroyed);
        found
            .map(|(id, _)| *id)
            .ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Removes a stream as soon as its operations have ended.
    pub fn destroy(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.destroyed = true;
        }
        self.drop_destroyed();
    }

    /// Removes all streams of a device. Their operations end without being performed, and so do waits for them.
    pub fn reset(&mut self, device: u32) {
        for (_, stream) in self
            .streams
            .iter_mut()
            .filter(|(id, _)| id.device == device)
        {
            while !stream.entries.is_empty() {
                stream.end_first(Vec::new());
            }
        }
        self.streams.retain(|id, _| id.device != device);
    }

    /// Appends an operation that starts after `after`. The default stream is created when it is first used.
    pub fn push(
        &mut self,
        id: StreamId,
        op: StreamOp,
        after: Vec<Completion>,
        host: Moment,
    ) -> Result<Completion> {
        if id.handle == 0 && !self.streams.contains_key(&id) {
            self.add(id, true);
        }
        let mut after = after;
        after.extend(self.implied(id));
        let stream = self
            .streams
            .get_mut(&id)
            .ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
        let end = Completion::default();
        stream.entries.push_back(QueuedOp {
            op,
            after,
            host,
            stamped: false,
            end: end.clone(),
        });
        stream.tail = Some(end.clone());
        self.has_new = true;
        Ok(end)
    }

    /// Returns the operations that an operation of `id` must wait for because of the rules of the default stream: it
    /// waits for all blocking streams of its device, and they wait for it.
    fn implied(&self, id: StreamId) -> Vec<Completion> {
        let blocks = |other: &StreamId| {
            other.device == id.device && *other != id && (id.handle == 0 || other.handle == 0)
        };
        if self.streams.get(&id).is_none_or(|stream| !stream.blocking) {
            return Vec::new();
        }
        self.streams
            .iter()
            .filter(|(other, stream)| stream.blocking && blocks(other))
            .filter_map(|(_, stream)| pending(stream.tail.as_ref()))
            .collect()
    }

    /// Returns the point at the end of a stream. For the default stream, it includes the streams that the default
    /// stream waits for.
    pub fn point(&self, id: StreamId) -> StreamPoint {
        let mut completions = Vec::new();
        if id.handle == 0 {
            completions = self.implied(id);
        }
        let Some(stream) = self.streams.get(&id) else {
            let moment = Moment::default();
            return StreamPoint {
                completions,
                moment,
            };
        };
        completions.extend(stream.tail.clone());
        StreamPoint {
            completions,
            moment: stream.moment.clone(),
        }
    }

    /// Returns the point at the end of all streams of a device.
    pub fn end(&self, device: u32) -> StreamPoint {
        let mut end = StreamPoint::default();
        let of_device = self.streams.iter().filter(|(id, _)| id.device == device);
        for (_, stream) in of_device {
            end.completions.extend(stream.tail.clone());
            end.moment.join(&stream.moment);
        }
        end
    }

    /// Returns whether an operation has been enqueued since the last [`Self::start`].
    pub fn has_new(&self) -> bool {
        self.has_new
    }

    /// Returns whether a kernel runs or waits in any stream.
    pub fn has_kernels(&self) -> bool {
        self.streams
            .values()
            .any(|stream| stream.entries.iter().any(|entry| entry.op.is_kernel()))
    }

    /// Returns whether a kernel runs on the device.
    pub fn runs_kernel(&self, device: u32) -> bool {
        self.streams.iter().any(|(id, stream)| {
            let first_is_kernel = || stream.entries.front().is_some_and(|e| e.op.is_kernel());
            id.device == device && stream.running.is_some() && first_is_kernel()
        })
    }

    /// Starts all operations that can start. Skips the work of devices for which `is_failed` returns true.
    pub fn start(&mut self, world: &mut World, is_failed: impl Fn(u32) -> bool) -> StartResult {
        if std::mem::take(&mut self.has_new) {
            self.stamp(&world.published_to_host());
        }
        let mut started = StartResult::default();
        loop {
            let mut moved = false;
            for (id, stream) in &mut self.streams {
                let failed = is_failed(id.device);
                while let Some(freed) = stream.start_next(world, id.device, failed) {
                    moved = true;
                    started.freed.extend(freed);
                }
            }
            // The end of a marker may allow another stream to continue.
            if !moved {
                break;
            }
            started.any = true;
        }
        self.drop_destroyed();
        started
    }

    /// Orders new operations after what kernels have published to host memory, since the program may have enqueued them
    /// because of what it has read there.
    fn stamp(&mut self, published: &Moment) {
        let entries = self.streams.values_mut().flat_map(|s| &mut s.entries);
        for entry in entries.filter(|entry| !entry.stamped) {
            entry.host.join(published);
            entry.stamped = true;
        }
    }

    /// Records the end of work. If a kernel has failed, returns the device and the reason.
    pub fn finish(
        &mut self,
        task: TaskId,
        outcome: Outcome,
        moment: Moment,
    ) -> Option<(u32, String)> {
        let (id, stream) = self
            .streams
            .iter_mut()
            .find(|(_, stream)| stream.running == Some(task))?;
        stream.running = None;
        let (read, failure) = match outcome {
            Outcome::Done => (Vec::new(), None),
            Outcome::Read(bytes) => (bytes, None),
            Outcome::Failed(reason) => (Vec::new(), Some((id.device, reason))),
        };
        stream.moment.join(&moment);
        stream.end_first(read);
        self.drop_destroyed();
        failure
    }

    fn drop_destroyed(&mut self) {
        self.streams
            .retain(|_, stream| !stream.destroyed || !stream.entries.is_empty());
    }
}

impl Stream {
    /// Starts the first operation if it can start. Returns none if it cannot, and otherwise the allocation to free, if
    /// any.
    fn start_next(&mut self, world: &mut World, device: u32, failed: bool) -> Option<Option<u64>> {
        let entry = self.entries.front_mut()?;
        if self.running.is_some()
            || entry
                .after
                .iter()
                .any(|completion| completion.get().is_none())
        {
            return None;
        }
        let mut after = self.moment.clone();
        after.join(&entry.host);
        let ends = entry.after.drain(..);
        ends.for_each(|completion| after.join(&moment_of(&completion)));
        let freed = match &entry.op {
            StreamOp::Work(work) if !failed => {
                self.running = Some(world.start(device, work.clone(), &after));
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
    fn end_first(&mut self, read: Vec<u8>) {
        if let Some(entry) = self.entries.pop_front() {
            let _ = entry.end.set(CompletionRecord {
                moment: self.moment.clone(),
                at: Instant::now(),
                read: Mutex::new(read),
            });
        }
    }
}
