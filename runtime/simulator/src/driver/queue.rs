//! [`Queues`]: the streams of a simulated host. What they hold, in which order it starts, and after what.

use super::graph::UserObject;
use super::{Code, Moment, Outcome, Result, TaskId, Work, World};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// A stream: its device, and its handle; 0 is the device's default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StreamId {
    pub device: u32,
    pub handle: u64,
}

/// The end of a piece of work: set when it is over.
pub(super) type Ticket = Arc<OnceLock<End>>;

/// A place in streams: behind `tickets`, and after `moment`.
#[derive(Clone, Debug, Default)]
pub(super) struct Point {
    pub tickets: Vec<Ticket>,
    pub moment: Moment,
}

impl Point {
    pub fn end_of(ticket: &Ticket) -> Self {
        Self {
            tickets: vec![ticket.clone()],
            moment: Moment::default(),
        }
    }

    /// When all before it was over.
    pub fn at(&self) -> Option<Instant> {
        let ends = self.tickets.iter().map(|ticket| Some(ticket.get()?.at));
        ends.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Whether all before it is over.
    pub fn is_over(&self) -> bool {
        self.tickets.iter().all(|ticket| ticket.get().is_some())
    }
}

impl StreamId {
    /// The default stream of a device.
    pub fn default_of(device: u32) -> Self {
        Self { device, handle: 0 }
    }
}

/// How and when a piece of work ended.
#[derive(Debug)]
pub(super) struct End {
    pub moment: Moment,
    pub at: Instant,
    read: Mutex<Vec<u8>>,
}

impl End {
    /// The bytes of a download; only the first who asks gets them.
    pub fn take_read(&self) -> Vec<u8> {
        std::mem::take(&mut *self.read.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a stream does next.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Something for the engine.
    Work(Work),
    /// Nothing: a place in the stream.
    Marker,
    /// The end of a graph's launch: what the graph retains is needed until then.
    Release(#[allow(dead_code, reason = "its drop is what counts")] Vec<Arc<UserObject>>),
    /// Frees an allocation.
    Free(u64),
}

impl Step {
    fn is_kernel(&self) -> bool {
        matches!(self, Self::Work(Work::Kernel { .. }))
    }
}

#[derive(Debug)]
struct Entry {
    step: Step,
    /// What must be over first, besides the stream's earlier work.
    after: Vec<Ticket>,
    /// What the host had seen when it enqueued this.
    host: Moment,
    /// Whether `host` has what kernels had published by then.
    stamped: bool,
    end: Ticket,
}

#[derive(Debug)]
struct Stream {
    /// Whether it and the default stream wait for each other.
    blocking: bool,
    entries: VecDeque<Entry>,
    running: Option<TaskId>,
    /// The end of what was enqueued last.
    tail: Option<Ticket>,
    /// All that the stream has done.
    moment: Moment,
    destroyed: bool,
}

/// What came of trying to start work.
#[derive(Debug, Default)]
pub(super) struct Started {
    /// Whether anything moved.
    pub any: bool,
    /// Allocations whose time has come.
    pub freed: Vec<u64>,
}

/// The streams of a host.
#[derive(Debug, Default)]
pub(super) struct Queues {
    // In order of devices and handles, so that what starts first does not depend on which host thread came first.
    streams: BTreeMap<StreamId, Stream>,
    /// Whether something came that was not tried to be started yet.
    has_new: bool,
}

impl Queues {
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

    /// The stream of a handle.
    pub fn find(&self, handle: u64) -> Result<StreamId> {
        let found = self
            .streams
            .iter()
            .find(|(id, stream)| id.handle == handle && !stream.destroyed);
        found
            .map(|(id, _)| *id)
            .ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Lets the stream go when its work is done.
    pub fn destroy(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.destroyed = true;
        }
        self.drop_destroyed();
    }

    /// Forgets the streams of a device, and their work, which is over by this for whoever waits for it.
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

    /// Appends a step. The default stream is made when it is first used.
    pub fn push(
        &mut self,
        id: StreamId,
        step: Step,
        after: Vec<Ticket>,
        host: Moment,
    ) -> Result<Ticket> {
        if id.handle == 0 && !self.streams.contains_key(&id) {
            self.add(id, true);
        }
        let mut after = after;
        after.extend(self.implied(id));
        let stream = self
            .streams
            .get_mut(&id)
            .ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
        let end = Ticket::default();
        stream.entries.push_back(Entry {
            step,
            after,
            host,
            stamped: false,
            end: end.clone(),
        });
        stream.tail = Some(end.clone());
        self.has_new = true;
        Ok(end)
    }

    /// The default stream waits for all blocking streams of its device, and they for it.
    fn implied(&self, id: StreamId) -> Vec<Ticket> {
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

    /// The place behind all that is in the stream. Behind the default stream is behind those that block it.
    pub fn point(&self, id: StreamId) -> Point {
        let mut tickets = Vec::new();
        if id.handle == 0 {
            tickets = self.implied(id);
        }
        let Some(stream) = self.streams.get(&id) else {
            let moment = Moment::default();
            return Point { tickets, moment };
        };
        tickets.extend(stream.tail.clone());
        Point {
            tickets,
            moment: stream.moment.clone(),
        }
    }

    /// The place behind all that is in the streams of a device.
    pub fn end(&self, device: u32) -> Point {
        let mut end = Point::default();
        let of_device = self.streams.iter().filter(|(id, _)| id.device == device);
        for (_, stream) in of_device {
            end.tickets.extend(stream.tail.clone());
            end.moment.join(&stream.moment);
        }
        end
    }

    /// Whether something was enqueued since the last [`Self::start`].
    pub fn has_new(&self) -> bool {
        self.has_new
    }

    /// Whether a kernel runs or waits in a stream.
    pub fn has_kernels(&self) -> bool {
        self.streams
            .values()
            .any(|stream| stream.entries.iter().any(|entry| entry.step.is_kernel()))
    }

    /// Whether a kernel runs on the device.
    pub fn runs_kernel(&self, device: u32) -> bool {
        self.streams.iter().any(|(id, stream)| {
            let first_is_kernel = || stream.entries.front().is_some_and(|e| e.step.is_kernel());
            id.device == device && stream.running.is_some() && first_is_kernel()
        })
    }

    /// Starts all that can start. On a device that `is_failed`, work is skipped.
    pub fn start(&mut self, world: &mut World, is_failed: impl Fn(u32) -> bool) -> Started {
        if std::mem::take(&mut self.has_new) {
            self.stamp(&world.published_to_host());
        }
        let mut started = Started::default();
        loop {
            let mut moved = false;
            for (id, stream) in &mut self.streams {
                let failed = is_failed(id.device);
                while let Some(freed) = stream.start_next(world, id.device, failed) {
                    moved = true;
                    started.freed.extend(freed);
                }
            }
            // The end of a marker can let another stream go on.
            if !moved {
                break;
            }
            started.any = true;
        }
        self.drop_destroyed();
        started
    }

    /// Whoever saw something in host memory may have enqueued work because of it.
    fn stamp(&mut self, published: &Moment) {
        let entries = self.streams.values_mut().flat_map(|s| &mut s.entries);
        for entry in entries.filter(|entry| !entry.stamped) {
            entry.host.join(published);
            entry.stamped = true;
        }
    }

    /// Takes note of what the engine finished; returns the device and the reason of a failure.
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
    /// Starts the first entry if its time has come. Some if it did something; then with what it frees.
    fn start_next(&mut self, world: &mut World, device: u32, failed: bool) -> Option<Option<u64>> {
        let entry = self.entries.front_mut()?;
        if self.running.is_some() || entry.after.iter().any(|ticket| ticket.get().is_none()) {
            return None;
        }
        let mut after = self.moment.clone();
        after.join(&entry.host);
        let ends = entry.after.drain(..);
        ends.for_each(|ticket| after.join(&moment_of(&ticket)));
        let freed = match &entry.step {
            Step::Work(work) if !failed => {
                self.running = Some(world.start(device, work.clone(), &after));
                return Some(None);
            }
            Step::Work(_) | Step::Marker | Step::Release(_) => None,
            Step::Free(address) => Some(*address),
        };
        self.moment = after;
        self.end_first(Vec::new());
        Some(freed)
    }

    fn end_first(&mut self, read: Vec<u8>) {
        if let Some(entry) = self.entries.pop_front() {
            let _ = entry.end.set(End {
                moment: self.moment.clone(),
                at: Instant::now(),
                read: Mutex::new(read),
            });
        }
    }
}

fn pending(ticket: Option<&Ticket>) -> Option<Ticket> {
    ticket.filter(|ticket| ticket.get().is_none()).cloned()
}

/// The moment at which something ended.
pub(super) fn moment_of(ticket: &Ticket) -> Moment {
    ticket
        .get()
        .map(|end| end.moment.clone())
        .unwrap_or_default()
}
