//! [`Host`]: a simulated host, its state, and how threads of the program wait for its GPUs.

use super::address_space::AddressSpace;
use super::completion::{StreamPoint, moment_of};
use super::graph::Graphs;
use super::launch_count::LaunchCount;
use super::result::{Code, Result};
use super::streams::Streams;
use super::{Finding, Image, Moment, World};
use crate::world::Options;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// The time for which a query such as `cuStreamQuery` waits before it returns that work is not complete. A thread that
/// queries in a loop thus leaves the CPU to the engine.
const POLL: Duration = Duration::from_millis(2);

/// The properties of a simulated host.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The options of the host's world.
    pub world: Options,
    /// The name of the host's GPUs.
    pub name: String,
    /// The number of streaming multiprocessors of a GPU.
    pub sm_count: u32,
    /// The largest shared memory of a CTA in bytes.
    pub smem_bytes: u32,
    /// The size of the L2 cache of a GPU in bytes.
    pub l2_bytes: u64,
}

/// A function that must run on the engine's thread.
type EngineRequest = Box<dyn FnOnce(&mut World, &mut HostState) + Send>;

/// Returns whether a part of the program has work to do that GPUs may wait for. The driver does not know of such work.
pub(super) type BusyCheck = Box<dyn Fn() -> bool + Send>;

/// Returns whether running kernels wait for a launch that the program has not made.
pub(super) type LaunchCheck = Box<dyn Fn() -> bool + Send>;

/// A simulated host. The threads of the program share it with its engine.
pub(super) struct Host {
    pub index: u32,
    pub options: HostOptions,
    state: Mutex<HostState>,
    /// Signalled when the engine may have something to do.
    pub engine_wakeup: Condvar,
    /// Signalled when work of the GPUs has ended.
    work_done: Condvar,
}

/// The state of a host.
pub(super) struct HostState {
    pub streams: Streams,
    pub memory: AddressSpace,
    pub devices: Vec<DeviceState>,
    pub events: HashMap<u64, Event>,
    pub graphs: Graphs,
    pub modules: HashMap<u64, Arc<Image>>,
    pub functions: HashMap<u64, LoadedFunction>,
    /// The work of GPUs that the program has waited for.
    pub seen: Moment,
    pub findings: Vec<Finding>,
    /// The wait of each thread of the program, or its last query.
    pub waits: HashMap<ThreadId, HostWait>,
    /// Functions that the engine runs next.
    pub requests: VecDeque<EngineRequest>,
    /// The parts of the program that kernels send commands to through pinned memory.
    pub busy_checks: HashMap<u64, BusyCheck>,
    /// Whether a launch of the program is missing when no kernel can continue.
    pub launch_check: Option<LaunchCheck>,
    /// The time of the last call that was not a query, or of the end of the last wait.
    pub last_call: Instant,
    pub standstill: Option<Standstill>,
    /// Whether the program has given up. Then GPUs do not wait for threads of the program that may come late.
    pub is_given_up: bool,
    pub is_claimed: bool,
    pub phase: HostPhase,
}

/// The state of a GPU.
#[derive(Default)]
pub(super) struct DeviceState {
    /// The number of times that the primary context of the GPU is retained.
    pub retains: u32,
    /// Whether a kernel has failed. All later work of the GPU fails as well.
    pub is_failed: bool,
}

/// An event of the program.
pub(super) struct Event {
    pub device: u32,
    /// The point at which the event was recorded. `None` if the event was never recorded.
    pub recorded: Option<RecordedAt>,
}

/// The point at which an event was recorded.
#[derive(Clone)]
pub(super) enum RecordedAt {
    /// After the operations that were in the stream at that time.
    Behind(StreamPoint),
    /// The event was recorded in a stream that was being captured into `graph`, after the nodes `after`.
    Captured { graph: u64, after: Vec<u64> },
}

/// A kernel of a loaded module.
pub(super) struct LoadedFunction {
    pub image: Arc<Image>,
    pub module: u64,
    pub max_smem_bytes: u32,
    pub launches: Arc<LaunchCount>,
}

/// The point that a thread of the program waits for, or has last queried.
pub(super) struct HostWait {
    pub device: u32,
    pub point: StreamPoint,
}

impl HostWait {
    pub fn is_over(&self) -> bool {
        self.point.is_over()
    }
}

/// A time in which no work can continue.
#[derive(Clone, Copy)]
pub(super) struct Standstill {
    pub since: Instant,
    /// Whether no work could continue at the last check. After a jump of simulated time, kernels read the time and may
    /// continue for a while.
    pub continues: bool,
    /// The time at which simulated time may jump again, if it must keep pace with real time.
    pub next_jump: Instant,
}

/// Whether a host works.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HostPhase {
    Open,
    /// The engine must end.
    Closing,
    /// The engine has panicked.
    Dead,
}

impl Host {
    pub fn new(index: u32, options: HostOptions) -> Self {
        let state = HostState {
            streams: Streams::new(options.sm_count, options.world.seed),
            memory: AddressSpace::default(),
            devices: (0..options.world.devices)
                .map(|_| DeviceState::default())
                .collect(),
            events: HashMap::new(),
            graphs: Graphs::default(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            seen: Moment::default(),
            findings: Vec::new(),
            waits: HashMap::new(),
            requests: VecDeque::new(),
            busy_checks: HashMap::new(),
            launch_check: None,
            last_call: Instant::now(),
            standstill: None,
            is_given_up: false,
            is_claimed: true,
            phase: HostPhase::Open,
        };
        Self {
            index,
            options,
            state: Mutex::new(state),
            engine_wakeup: Condvar::new(),
            work_done: Condvar::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, HostState> {
        // Only the engine can panic while it holds the lock. The state is then only used to free it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state for a call that changes it. The engine examines the change when the guard is dropped.
    pub fn call(&self) -> Result<MutexGuard<'_, HostState>> {
        let mut state = self.lock();
        state.ensure_alive()?;
        state.last_call = Instant::now();
        state.standstill = None;
        state.waits.remove(&std::thread::current().id());
        self.engine_wakeup.notify_one();
        Ok(state)
    }

    /// Locks the state for a call that changes work of a device. Fails if a kernel of the device has failed.
    pub fn call_on(&self, device: u32) -> Result<MutexGuard<'_, HostState>> {
        let state = self.call()?;
        state.ensure_works(device)?;
        Ok(state)
    }

    /// Runs a function on the engine's thread, and returns its result.
    pub fn run_on_engine<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut World, &mut HostState) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (result, received) = mpsc::channel();
        self.call()?
            .requests
            .push_back(Box::new(move |world, state| {
                // Sending fails only if the thread that waits for the result was ended.
                let _ = result.send(request(world, state));
            }));
        received.recv().unwrap_or(Err(Code::CUDA_ERROR_UNKNOWN))
    }

    /// Waits until `point` is reached. The program has then seen the work before it.
    pub fn wait(&self, device: u32, point: StreamPoint) -> Result<()> {
        let mut state = self.call_on(device)?;
        let thread = std::thread::current().id();
        state.waits.insert(thread, HostWait { device, point });
        while !state.wait_is_over(thread) {
            state.ensure_alive()?;
            state = self
                .work_done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.saw(thread);
        state.ensure_works(device)
    }

    /// Returns whether `point` is reached, after a short wait if it is not.
    pub fn poll(&self, device: u32, point: StreamPoint) -> Result<()> {
        let mut state = self.lock();
        state.ensure_alive()?;
        state.ensure_works(device)?;
        let thread = std::thread::current().id();
        state.waits.insert(thread, HostWait { device, point });
        self.engine_wakeup.notify_one();
        let (mut state, _) = self
            .work_done
            .wait_timeout_while(state, POLL, |state| {
                state.phase == HostPhase::Open && !state.wait_is_over(thread)
            })
            .unwrap_or_else(PoisonError::into_inner);
        state.ensure_alive()?;
        if !state.wait_is_over(thread) {
            return Err(Code::CUDA_ERROR_NOT_READY);
        }
        state.saw(thread);
        state.ensure_works(device)
    }

    /// Wakes the threads of the program that wait for work.
    pub fn notify_waiters(&self) {
        self.work_done.notify_all();
    }

    /// Sets the phase, which ends the engine, and ends all waits of the program.
    pub fn end(&self, phase: HostPhase) {
        let mut state = self.lock();
        if state.phase == HostPhase::Open {
            state.phase = phase;
        }
        // Dropping the requests ends the waits of the threads that made them.
        state.requests.clear();
        drop(state);
        self.engine_wakeup.notify_one();
        self.notify_waiters();
    }
}

impl HostState {
    fn ensure_alive(&self) -> Result<()> {
        match self.phase {
            HostPhase::Open => Ok(()),
            HostPhase::Closing => Err(Code::CUDA_ERROR_DEINITIALIZED),
            HostPhase::Dead => Err(Code::CUDA_ERROR_UNKNOWN),
        }
    }

    /// Fails if a kernel of the device has failed, or if the device does not exist.
    pub fn ensure_works(&self, device: u32) -> Result<()> {
        match self.devices.get(device as usize) {
            Some(gpu) if gpu.is_failed => Err(Code::CUDA_ERROR_LAUNCH_FAILED),
            Some(_) => Ok(()),
            None => Err(Code::CUDA_ERROR_INVALID_DEVICE),
        }
    }

    /// Returns whether no work can continue until a part of the program, which is busy now, has done its work.
    pub fn waits_for_busy_checks(&self) -> bool {
        self.standstill.is_some() && self.busy_checks.values().any(|is_busy| is_busy())
    }

    /// Returns whether the program, and not a kernel, is why running kernels cannot continue.
    pub fn lacks_launch(&self) -> bool {
        self.launch_check.as_ref().is_some_and(|lacks| lacks())
    }

    fn wait_is_over(&self, thread: ThreadId) -> bool {
        self.waits.get(&thread).is_none_or(HostWait::is_over)
    }

    /// Records that a thread of the program has waited to the end.
    fn saw(&mut self, thread: ThreadId) {
        if let Some(HostWait { point, .. }) = self.waits.remove(&thread) {
            self.seen.join(&point.moment);
            for completion in &point.completions {
                self.seen.join(&moment_of(completion));
            }
        }
    }
}
