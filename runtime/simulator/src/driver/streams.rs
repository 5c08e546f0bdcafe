//! [`Streams`]: the streams of a simulated host, their operations, and the order in which operations start.

use super::completion::{Completion, StreamPoint, pending};
use super::residency::Residency;
use super::result::{Code, Result};
use super::stream::{QueuedOp, Stream, StreamOp};
use super::{Moment, Outcome, TaskId, World};
use std::collections::{BTreeMap, VecDeque};

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

/// The result of [`Streams::start`].
#[derive(Debug, Default)]
pub(super) struct StartResult {
    /// Whether any operation has started or ended.
    pub any: bool,
    /// The allocations that must be freed now.
    pub freed: Vec<u64>,
}

/// The streams of a host.
#[derive(Debug)]
pub(super) struct Streams {
    // The streams are ordered by device and handle, so that nothing depends on the order of the program's threads.
    streams: BTreeMap<StreamId, Stream>,
    /// Whether an operation has been enqueued since the last start.
    has_new: bool,
    residency: Residency,
    /// The seed of the order in which streams of a device start their operations.
    seed: u64,
}

impl Streams {
    /// Returns no streams, on GPUs with a number of SMs.
    pub fn new(sm_count: u32, seed: u64) -> Self {
        Self {
            seed,
            streams: BTreeMap::new(),
            has_new: false,
            residency: Residency::new(sm_count),
        }
    }

    /// Adds a stream.
    pub fn add(&mut self, id: StreamId, blocking: bool) {
        let stream = Stream {
            blocking,
            entries: VecDeque::new(),
            ended: 0,
            running: None,
            early: None,
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
        self.residency.reset(device);
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
            running: None,
            end: end.clone(),
        });
        stream.tail = Some(end.clone());
        self.has_new = true;
        Ok(end)
    }

    /// Returns the operations that an operation of `id` must wait for because of the rules of the default stream: the
    /// default stream waits for all blocking streams of its device, and these streams wait for the default stream.
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

    /// Returns whether a kernel could not start because of the SMs that other kernels hold.
    pub fn wait_for_sms(&self) -> bool {
        self.residency.has_refused()
    }

    /// Starts all operations that can start. Skips the work of devices for which `is_failed` returns true.
    pub fn start(&mut self, world: &mut World, is_failed: impl Fn(u32) -> bool) -> StartResult {
        if std::mem::take(&mut self.has_new) {
            self.stamp(&world.published_to_host());
        }
        let mut started = StartResult::default();
        loop {
            let mut moved = false;
            self.residency.begin();
            for id in self.start_order() {
                let Some(stream) = self.streams.get_mut(&id) else {
                    continue;
                };
                let failed = is_failed(id.device);
                while let Some(freed) =
                    stream.start_next(world, &mut self.residency, id.device, failed)
                {
                    moved = true;
                    started.freed.extend(freed);
                }
                moved |= stream.start_early(world, id.device, failed);
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

    /// Returns the streams, in the order in which they start their operations. Kernels of several streams may compete for
    /// SMs, so the seed chooses the order of a device's streams for each operation.
    fn start_order(&self) -> Vec<StreamId> {
        let mut order = Vec::with_capacity(self.streams.len());
        let mut number = 0;
        for (id, stream) in &self.streams {
            number = match order.last() {
                Some(&(device, _, _)) if device == id.device => number + 1,
                _ => 0,
            };
            let place = u64::from(id.device) << 48 | number << 32 | stream.ended;
            let mixed = (self.seed ^ place.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            order.push((id.device, mixed ^ (mixed >> 32), *id));
        }
        order.sort_unstable();
        order.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Orders new operations after all stores that kernels have published to host memory, since the program may have
    /// enqueued these operations in response to the stores.
    fn stamp(&mut self, published: &Moment) {
        let entries = self.streams.values_mut().flat_map(|s| &mut s.entries);
        for entry in entries.filter(|entry| !entry.stamped) {
            entry.host.join(published);
            entry.stamped = true;
        }
    }

    /// Records the end of work. If a kernel has failed, returns the device and the reason. `has_aborted`: whether a kernel of
    /// the host has.
    pub fn finish(
        &mut self,
        task: TaskId,
        outcome: Outcome,
        moment: Moment,
        has_aborted: bool,
    ) -> Option<(u32, String)> {
        let (id, stream) = self
            .streams
            .iter_mut()
            .find(|(_, stream)| stream.runs(task))?;
        let (read, failure) = match outcome {
            Outcome::Done => (Vec::new(), None),
            Outcome::Read(bytes) => (bytes, None),
            Outcome::Failed(reason) => (Vec::new(), Some((id.device, reason))),
        };
        if let Some(early) = stream
            .early
            .as_mut()
            .filter(|early| early.running.task == task)
        {
            early.ended = Some(moment);
        } else {
            let ended = stream.running.map_or(0, |running| running.sms);
            stream.end_running(&moment, read, has_aborted);
            self.residency.give_back(id.device, ended);
            if let Some(running) = stream.running {
                self.residency.hold(id.device, running.sms);
            }
        }
        self.drop_destroyed();
        failure
    }

    fn drop_destroyed(&mut self) {
        self.streams
            .retain(|_, stream| !stream.destroyed || !stream.entries.is_empty());
    }
}
