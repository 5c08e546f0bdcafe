//! [`Host`]: a simulated host, its state, and how threads of the program wait for its GPUs.

use super::graph::Graphs;
use super::memory::Memory;
use super::queue::{Point, Queues, moment_of};
use super::registry::HostOptions;
use super::{Code, Finding, Image, Moment, Result, World};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long a question such as `cuStreamQuery` waits before it says no, so that who asks all the time leaves the CPU
/// to the engine.
const POLL: Duration = Duration::from_millis(2);

/// Something that only the engine's thread can do.
type Ask = Box<dyn FnOnce(&mut World, &mut State) + Send>;

/// Whether a part of the program has something to do for which GPUs may wait, and of which the driver knows nothing.
pub(super) type IsBusy = Box<dyn Fn() -> bool + Send>;

/// A simulated host. Threads of the program and its engine share it.
pub(super) struct Host {
    pub index: u32,
    pub options: HostOptions,
    state: Mutex<State>,
    /// Wakes the engine.
    pub bell: Condvar,
    /// Wakes threads that wait for work.
    done: Condvar,
}

/// What a host holds.
pub(super) struct State {
    pub queues: Queues,
    pub memory: Memory,
    pub devices: Vec<Gpu>,
    pub events: HashMap<u64, Event>,
    pub graphs: Graphs,
    pub modules: HashMap<u64, Arc<Image>>,
    pub functions: HashMap<u64, Function>,
    /// What the program has seen of the GPUs' work, by waiting for it.
    pub seen: Moment,
    pub findings: Vec<Finding>,
    pub waits: HashMap<ThreadId, Wait>,
    pub asks: VecDeque<Ask>,
    /// Parts of the program that carry out what kernels ask for in pinned memory.
    pub helpers: HashMap<u64, IsBusy>,
    /// The last call that was no question, or the last wait that ended.
    pub last_call: Instant,
    pub standstill: Option<Standstill>,
    /// Whether the program has given up, so that no GPU is to wait for threads that may come late.
    pub is_given_up: bool,
    pub is_claimed: bool,
    pub phase: Phase,
}

/// One of its GPUs.
#[derive(Default)]
pub(super) struct Gpu {
    /// How often its primary context was retained.
    pub retains: u32,
    /// Whether a kernel failed, after which nothing works any more.
    pub is_failed: bool,
}

pub(super) struct Event {
    pub device: u32,
    /// None before it is recorded.
    pub recorded: Option<Recorded>,
}

/// Where an event was recorded.
#[derive(Clone)]
pub(super) enum Recorded {
    /// Behind what was in the stream then.
    Behind(Point),
    /// In a stream that was being captured: into which graph, and after which of its nodes.
    Captured { graph: u64, after: Vec<u64> },
}

pub(super) struct Function {
    pub image: Arc<Image>,
    pub module: u64,
    pub max_smem_bytes: u32,
}

/// What a thread of the program waits for, or has asked for lately.
pub(super) struct Wait {
    pub device: u32,
    pub point: Point,
}

impl Wait {
    pub fn is_over(&self) -> bool {
        self.point.is_over()
    }
}

/// The engine could not go on.
#[derive(Clone, Copy)]
pub(super) struct Standstill {
    pub since: Instant,
    /// Whether it was one still at the last look: after a jump, kernels look at the time.
    pub goes_on: bool,
    /// When time may jump again, if it keeps pace with real time.
    pub next_jump: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// The engine is to end.
    Closing,
    /// The engine has ended by itself.
    Dead,
}

impl Host {
    pub fn new(index: u32, options: HostOptions) -> Self {
        let state = State {
            queues: Queues::default(),
            memory: Memory::default(),
            devices: (0..options.world.devices).map(|_| Gpu::default()).collect(),
            events: HashMap::new(),
            graphs: Graphs::default(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            seen: Moment::default(),
            findings: Vec::new(),
            waits: HashMap::new(),
            asks: VecDeque::new(),
            helpers: HashMap::new(),
            last_call: Instant::now(),
            standstill: None,
            is_given_up: false,
            is_claimed: true,
            phase: Phase::Open,
        };
        Self {
            index,
            options,
            state: Mutex::new(state),
            bell: Condvar::new(),
            done: Condvar::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in between is that of the engine, after which nothing in here is used any more but to free it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state for a call that does something. The engine looks at it when the guard goes.
    pub fn call(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        state.ensure_alive()?;
        state.last_call = Instant::now();
        state.standstill = None;
        state.waits.remove(&std::thread::current().id());
        self.bell.notify_one();
        Ok(state)
    }

    /// [`Self::call`] for something that a device is to do, which it cannot after a failure.
    pub fn call_on(&self, device: u32) -> Result<MutexGuard<'_, State>> {
        let state = self.call()?;
        state.ensure_works(device)?;
        Ok(state)
    }

    /// Lets the engine's thread do something.
    pub fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut World, &mut State) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = mpsc::channel();
        self.call()?.asks.push_back(Box::new(move |world, state| {
            // Who asked may be gone only if its thread was ended.
            let _ = answer.send(question(world, state));
        }));
        answered.recv().unwrap_or(Err(Code::CUDA_ERROR_UNKNOWN))
    }

    /// Waits until all is over; then the program has seen it.
    pub fn wait(&self, device: u32, point: Point) -> Result<()> {
        let mut state = self.call_on(device)?;
        let thread = std::thread::current().id();
        state.waits.insert(thread, Wait { device, point });
        while !state.wait_is_over(thread) {
            state.ensure_alive()?;
            state = self
                .done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.saw(thread);
        state.ensure_works(device)
    }

    /// Whether all is over; waits a little if it is not.
    pub fn poll(&self, device: u32, point: Point) -> Result<()> {
        let mut state = self.lock();
        state.ensure_alive()?;
        state.ensure_works(device)?;
        let thread = std::thread::current().id();
        state.waits.insert(thread, Wait { device, point });
        self.bell.notify_one();
        let (mut state, _) = self
            .done
            .wait_timeout_while(state, POLL, |state| {
                state.phase == Phase::Open && !state.wait_is_over(thread)
            })
            .unwrap_or_else(PoisonError::into_inner);
        state.ensure_alive()?;
        if !state.wait_is_over(thread) {
            return Err(Code::CUDA_ERROR_NOT_READY);
        }
        state.saw(thread);
        state.ensure_works(device)
    }

    /// Tells threads of the program that something ended.
    pub fn announce(&self) {
        self.done.notify_all();
    }

    /// Ends the engine.
    pub fn end(&self, phase: Phase) {
        let mut state = self.lock();
        if state.phase == Phase::Open {
            state.phase = phase;
        }
        // Whoever waits for an answer is told by this that there will be none.
        state.asks.clear();
        drop(state);
        self.bell.notify_one();
        self.announce();
    }
}

impl State {
    fn ensure_alive(&self) -> Result<()> {
        match self.phase {
            Phase::Open => Ok(()),
            Phase::Closing => Err(Code::CUDA_ERROR_DEINITIALIZED),
            Phase::Dead => Err(Code::CUDA_ERROR_UNKNOWN),
        }
    }

    pub fn ensure_works(&self, device: u32) -> Result<()> {
        match self.devices.get(device as usize) {
            Some(gpu) if gpu.is_failed => Err(Code::CUDA_ERROR_LAUNCH_FAILED),
            Some(_) => Ok(()),
            None => Err(Code::CUDA_ERROR_INVALID_DEVICE),
        }
    }

    /// Whether GPUs stand still, but not for long: the program is at work for them.
    pub fn waits_for_helpers(&self) -> bool {
        self.standstill.is_some() && self.helpers.values().any(|is_busy| is_busy())
    }

    fn wait_is_over(&self, thread: ThreadId) -> bool {
        self.waits.get(&thread).is_none_or(Wait::is_over)
    }

    /// A thread of the program has waited to the end.
    fn saw(&mut self, thread: ThreadId) {
        if let Some(Wait { point, .. }) = self.waits.remove(&thread) {
            self.seen.join(&point.moment);
            for ticket in &point.tickets {
                self.seen.join(&moment_of(ticket));
            }
        }
    }
}
