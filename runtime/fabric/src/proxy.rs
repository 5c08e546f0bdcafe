//! [`Proxy`]: the thread that drives an [`Endpoint`].
//!
//! An idle thread first spins, then yields, then sleeps, so that it reacts fast to work and costs little without it.

pub use crate::back_off::LONG_SLEEP;

use crate::back_off::back_off;
use crate::control::{Control, Exit, Step, drive};
use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::requests::{EndRequests, Requests};
use crate::stats::{Counters, StatsReader};
use crate::transport::Limits;
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use std::cell::RefCell;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time for which an endpoint waits until its peers have received its last message. A peer that has received the message may
/// be gone before it acknowledges the message.
const LAST_MESSAGE_LIMIT: Duration = Duration::from_millis(100);

/// The time by which the system may extend a sleep. The system's default is 50 µs.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(5_000).unwrap();

/// Options of a proxy's thread.
#[derive(Clone, Debug, Default)]
pub struct ProxyOptions {
    /// The cores on which the thread may run. The best choice is a core of the NIC's NUMA node that nothing else uses. An empty
    /// list means any core.
    pub cores: Vec<usize>,
    /// Whether the thread sleeps for [`LONG_SLEEP`] as soon as it has nothing to do. This is meant for hosts where other
    /// threads, such as simulated GPUs, need the core.
    pub sleeps_at_once: bool,
}

struct Shared {
    control: Control,
    error: OnceLock<FabricError>,
    /// The rank whose loss the owner reported.
    lost_rank: OnceLock<u32>,
    /// The owner's requests to the endpoint.
    requests: Requests,
    counters: Arc<Counters>,
    start: Instant,
}

impl Shared {
    fn is_past_drain(&self, now: Instant) -> bool {
        ns(now.saturating_duration_since(self.start)) > self.control.drain_limit_ns()
    }
}

/// A running endpoint. Dropping the proxy stops the thread at once. [`shutdown`](Self::shutdown) lets puts complete first.
pub struct Proxy {
    shared: Arc<Shared>,
    limits: Limits,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// [`FabricError::Config`] if a core does not exist or if no thread can be started.
    pub fn start(endpoint: Endpoint, options: &ProxyOptions) -> Result<Self, FabricError> {
        let cores = cpu_set(&options.cores)?;
        let sleeps_at_once = options.sleeps_at_once;
        let shared = Arc::new(Shared {
            control: Control::new(),
            error: OnceLock::new(),
            lost_rank: OnceLock::new(),
            requests: Requests::new(),
            counters: Arc::clone(endpoint.counters()),
            start: Instant::now(),
        });
        let limits = endpoint.limits();
        let (theirs, (pinned, is_pinned)) = (Arc::clone(&shared), std::sync::mpsc::channel());
        let body = move || {
            let outcome = cores.map_or(Ok(()), |cores| sched_setaffinity(None, &cores));
            let may_run = outcome.is_ok();
            // The owner waits for this message.
            let _ = pinned.send(outcome);
            if may_run {
                run(endpoint, &theirs, sleeps_at_once);
            }
        };
        let thread = std::thread::Builder::new().name("mkernel-fabric".into());
        let thread = thread.spawn(body);
        let thread = thread
            .map_err(|error| config(format!("cannot start a thread for the proxy: {error}")))?;
        if let Ok(Err(error)) = is_pinned.recv() {
            let cores = &options.cores;
            return Err(config(format!(
                "the proxy cannot run on the cores {cores:?}: {error}; choose cores that this process may use"
            )));
        }
        Ok(Self {
            shared,
            limits,
            thread: Some(thread),
        })
    }

    /// Returns the limits of the transport.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the reader of the endpoint's statistics.
    #[must_use]
    pub fn stats(&self) -> StatsReader {
        StatsReader(Arc::clone(&self.shared.counters))
    }

    /// Runs `request` on the proxy's thread between two steps, and returns its result. The endpoint makes no progress while the
    /// request runs.
    ///
    /// # Errors
    ///
    /// Returns the error of the request, which does not end the proxy. If the thread has ended, returns its error, or
    /// [`FabricError::NotDrained`] if it was stopped.
    pub fn with_endpoint<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Endpoint) -> Result<T, FabricError> + Send + 'static,
    ) -> Result<T, FabricError> {
        let (answer, outcome) = std::sync::mpsc::channel();
        self.shared.requests.add(Box::new(move |endpoint| {
            let outcome = catch_unwind(AssertUnwindSafe(|| request(endpoint)));
            let (outcome, panic) = match outcome {
                Ok(outcome) => (outcome, None),
                Err(panic) => (Err(panicked()), Some(panic)),
            };
            // The owner waits for this message.
            let _ = answer.send(outcome);
            // A panic may leave the endpoint inconsistent, so it ends the thread.
            if let Some(panic) = panic {
                resume_unwind(panic);
            }
        }));
        self.wake();
        // A request that is not run is dropped with its sender, which ends this wait.
        outcome.recv().unwrap_or_else(|_| {
            Err(self.error().unwrap_or(FabricError::NotDrained {
                pending: 0,
                limit: Duration::ZERO,
            }))
        })
    }

    /// Sets the deadline of puts, including puts under way.
    pub fn set_deadline(&self, deadline: Duration) {
        let set = move |endpoint: &mut Endpoint| endpoint.set_deadline(deadline);
        self.shared.requests.add(Box::new(set));
        self.wake();
    }

    /// Returns the reason why the fabric failed, or `None` if it has not failed. The error is set before kernels are made to
    /// abort.
    #[must_use]
    pub fn error(&self) -> Option<FabricError> {
        self.shared.error.get().cloned()
    }

    /// Makes the thread look for commands at once, and prevents long sleeps for the next 20 ms. The owner calls this when it
    /// launches a kernel.
    pub fn wake(&self) {
        self.shared.control.wake();
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Records that kernels may run from now on without a call of [`wake`](Self::wake), such as kernels of replayed
    /// graphs. The owner calls this when a launch is captured.
    pub fn capture(&self) {
        self.shared.control.capture();
    }

    /// Stops the thread after the close handshake: the writes of all commands published before this call have completed, all
    /// peers have received the close, and no peer waits for a completion. The handshake takes at most `limit`.
    ///
    /// A peer that puts to this endpoint later gets [`FabricError::PeerClosed`]. Other peers see no error.
    ///
    /// # Errors
    ///
    /// Returns the first error of this endpoint, or [`FabricError::NotDrained`] if the limit was too short.
    pub fn shutdown(mut self, limit: Duration) -> Result<(), FabricError> {
        let deadline = self.shared.start.elapsed().saturating_add(limit);
        self.shared.control.drain(ns(deadline));
        self.wake();
        self.join();
        match self.error() {
            Some(FabricError::NotDrained { pending, .. }) => {
                Err(FabricError::NotDrained { pending, limit })
            }
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Stops the thread at once because a rank is lost. The lost rank need not be a peer. Peers get
    /// [`FabricError::PeerAborted`].
    pub fn abort(self, lost_rank: u32) {
        let _ = self.shared.lost_rank.set(lost_rank);
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            // An earlier error takes precedence.
            let _ = self.shared.error.set(panicked());
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.control.stop();
        self.wake();
        self.join();
    }
}

fn config(issue: String) -> FabricError {
    FabricError::Config(vec![issue])
}

fn cpu_set(cores: &[usize]) -> Result<Option<CpuSet>, FabricError> {
    let mut set = CpuSet::new();
    for core in cores {
        if *core >= CpuSet::MAX_CPU {
            return Err(config(format!(
                "core {core} does not exist; core numbers are below {}",
                CpuSet::MAX_CPU
            )));
        }
        set.set(*core);
    }
    Ok((!cores.is_empty()).then_some(set))
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The body of the thread. Kernels are made to abort on every exit other than a drain, including a panic.
fn run(mut endpoint: Endpoint, shared: &Shared, sleeps_at_once: bool) {
    // If the system refuses the timer slack, sleeps are longer.
    let _ = set_current_timer_slack(Some(TIMER_SLACK_NS));
    // The error is set before requests are dropped.
    let _end = EndRequests(&shared.requests);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run_until_exit(&mut endpoint, shared, sleeps_at_once)
    }));
    if let Err(error) = outcome.unwrap_or_else(|_| Err(panicked())) {
        // This is the only place that sets the error while the thread lives.
        let _ = shared.error.set(error.clone());
        if let Some(lost_rank) = endpoint.abort_kernels(&error) {
            announce_loss(&mut endpoint, lost_rank);
        }
    }
}

fn run_until_exit(
    endpoint: &mut Endpoint,
    shared: &Shared,
    sleeps_at_once: bool,
) -> Result<(), FabricError> {
    let endpoint = RefCell::new(endpoint);
    let mut last_progress = Instant::now();
    let step = || {
        let now = Instant::now();
        let mut endpoint = endpoint.borrow_mut();
        let requests = shared.requests.take();
        requests
            .into_iter()
            .for_each(|request| request(&mut endpoint));
        let has_progressed = endpoint.step(now)?;
        if shared.is_past_drain(now) {
            return Err(not_drained(&endpoint));
        }
        Ok(Step {
            has_progressed,
            is_idle: endpoint.is_idle(),
        })
    };
    let idle = |step: Step| {
        if step.has_progressed || shared.control.was_woken() {
            last_progress = Instant::now();
        } else {
            let has_slept = if sleeps_at_once {
                std::thread::park_timeout(LONG_SLEEP);
                true
            } else {
                let is_captured = shared.control.is_captured();
                back_off(last_progress.elapsed(), step.is_idle, is_captured)
            };
            shared.counters.sleeps.add(has_slept.into());
        }
    };
    let end = drive(&shared.control, step, idle)?;
    let endpoint = endpoint.into_inner();
    match (end, shared.lost_rank.get()) {
        (Exit::Stopped, Some(lost_rank)) => {
            announce_loss(endpoint, *lost_rank);
            Ok(())
        }
        (Exit::Stopped, None) if !endpoint.is_idle() => Err(not_drained(endpoint)),
        (Exit::Stopped, None) => Ok(()),
        (Exit::Drained, _) => close_handshake(endpoint, shared),
    }
}

/// Runs the close handshake within the drain's limit.
///
/// A peer that does not receive the close in time will report this endpoint as lost. A peer that does not answer in time may
/// also report this endpoint as lost.
fn close_handshake(endpoint: &mut Endpoint, shared: &Shared) -> Result<(), FabricError> {
    let start = Instant::now();
    let mut last_needed = start;
    endpoint.close();
    loop {
        let now = Instant::now();
        endpoint.step(now)?;
        if endpoint.is_needed() {
            last_needed = now;
        }
        let has_waited = now.saturating_duration_since(last_needed) >= LAST_MESSAGE_LIMIT;
        if endpoint.is_closed() || has_waited || shared.is_past_drain(now) {
            return Ok(());
        }
        back_off(start.elapsed(), false, false);
    }
}

/// Sends the number of the lost rank to the peers.
fn announce_loss(endpoint: &mut Endpoint, lost_rank: u32) {
    let start = Instant::now();
    endpoint.close_after_loss(lost_rank);
    while !endpoint.is_closed() && start.elapsed() < LAST_MESSAGE_LIMIT {
        // The endpoint has failed already, so errors are ignored.
        let _ = endpoint.step(Instant::now());
        back_off(start.elapsed(), false, false);
    }
}

fn panicked() -> FabricError {
    let reason = "the thread of the proxy panicked, which is a defect of mkernel; please report it"
        .to_owned();
    FabricError::Nic { reason }
}

fn not_drained(endpoint: &Endpoint) -> FabricError {
    FabricError::NotDrained {
        pending: endpoint.pending() as u64,
        limit: Duration::ZERO,
    }
}
