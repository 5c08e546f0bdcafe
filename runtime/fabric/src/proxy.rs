//! The thread that drives an endpoint.

use crate::control::{Control, Exit, Step, drive};
use crate::endpoint::Endpoint;
use crate::error::FabricError;
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use std::cell::RefCell;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Without work, a proxy spins so long,
const SPIN_UNTIL: Duration = Duration::from_micros(50);
/// then lets other threads go first so long, and until [`SHORT_SLEEP_UNTIL`] if something is on its way from here,
const YIELD_UNTIL: Duration = Duration::from_millis(1);
/// then sleeps in naps,
const SHORT_SLEEP: Duration = Duration::from_micros(50);
/// and after this, if nothing is on its way from here,
const SHORT_SLEEP_UNTIL: Duration = Duration::from_millis(20);
/// in longer ones. This, plus what the system takes to wake a thread, is how late a command or an arrival may be picked
/// up, unless [`Proxy::wake`] was called before. It costs about 2 % of a core.
pub const LONG_SLEEP: Duration = Duration::from_micros(500);
/// Replays of a graph call no [`Proxy::wake`]. Once a launch was captured, a proxy lets other threads go first until it has had
/// no work for so long, which is more than a step of most models takes, and then sleeps in naps, never in long ones.
const CAPTURED_YIELD_UNTIL: Duration = Duration::from_millis(50);

/// How long peers may take to hear why this endpoint gives up.
const ABORT_LIMIT: Duration = Duration::from_millis(100);

/// How the system may round a nap up; its default is 50 µs.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(5_000).unwrap();

/// Of a proxy's thread.
#[derive(Clone, Debug, Default)]
pub struct ProxyOptions {
    /// The cores it may run on: best one of the NIC's NUMA node that nothing else uses. Empty: any.
    pub cores: Vec<usize>,
    /// Naps at once when there is nothing to do, for 50 µs: where others, such as simulated GPUs, need the core.
    pub sleeps_at_once: bool,
}

struct Shared {
    control: Control,
    error: OnceLock<FabricError>,
    /// Whose loss its owner was told of.
    lost_rank: OnceLock<u32>,
    start: Instant,
}

impl Shared {
    fn is_past_drain(&self, now: Instant) -> bool {
        ns(now.saturating_duration_since(self.start)) > self.control.drain_limit_ns()
    }
}

/// A running endpoint. Dropping it ends it at once; [`shutdown`](Self::shutdown) lets puts leave first.
pub struct Proxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// [`FabricError::Config`] if there is no such core, or no more threads.
    pub fn start(endpoint: Endpoint, options: &ProxyOptions) -> Result<Self, FabricError> {
        let cores = cpu_set(&options.cores)?;
        let sleeps_at_once = options.sleeps_at_once;
        let shared = Arc::new(Shared {
            control: Control::new(),
            error: OnceLock::new(),
            lost_rank: OnceLock::new(),
            start: Instant::now(),
        });
        let (theirs, (pinned, is_pinned)) = (Arc::clone(&shared), std::sync::mpsc::channel());
        let body = move || {
            let outcome = cores.map_or(Ok(()), |cores| sched_setaffinity(None, &cores));
            let may_run = outcome.is_ok();
            // The owner waits for it.
            let _ = pinned.send(outcome);
            if may_run {
                run(endpoint, &theirs, sleeps_at_once);
            }
        };
        let thread = std::thread::Builder::new().name("mkernel-fabric".into());
        let thread = thread.spawn(body);
        let thread = thread.map_err(|error| config(format!("no thread for the proxy: {error}")))?;
        if let Ok(Err(error)) = is_pinned.recv() {
            let cores = &options.cores;
            return Err(config(format!(
                "the proxy cannot run on the cores {cores:?}: {error}"
            )));
        }
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Why the fabric has failed, if it has. Kernels have been told.
    #[must_use]
    pub fn error(&self) -> Option<FabricError> {
        self.shared.error.get().cloned()
    }

    /// Makes the thread look for commands at once, and for the next 20 ms without long naps. To be called when a kernel
    /// is launched.
    pub fn wake(&self) {
        self.shared.control.wake();
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Tells the thread that kernels may run from now on of which [`wake`](Self::wake) says nothing, such as replays of graphs.
    /// To be called when a launch is captured.
    pub fn capture(&self) {
        self.shared.control.capture();
    }

    /// Ends the thread once all commands that were published before have left, peers were told, and none of them waits for
    /// a completion any more, as far as `limit` allows. To those who put to this endpoint later that is an error,
    /// [`FabricError::PeerClosed`]; to others it is none.
    ///
    /// # Errors
    ///
    /// The first that this endpoint had; [`FabricError::NotDrained`] if `limit` did not suffice.
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

    /// Ends the thread at once, since `lost`, which may be no peer, is lost. Peers get [`FabricError::PeerAborted`].
    pub fn abort(self, lost_rank: u32) {
        let _ = self.shared.lost_rank.set(lost_rank);
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            // An earlier error stays.
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

fn config(mistake: String) -> FabricError {
    FabricError::Config(vec![mistake])
}

fn cpu_set(cores: &[usize]) -> Result<Option<CpuSet>, FabricError> {
    let mut set = CpuSet::new();
    for core in cores {
        if *core >= CpuSet::MAX_CPU {
            return Err(config(format!(
                "core {core}, but cores are numbered below {}",
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

/// The thread's body. Whatever ends it but a drain is told to kernels, a panic too.
fn run(mut endpoint: Endpoint, shared: &Shared, sleeps_at_once: bool) {
    // Refused, naps are longer.
    let _ = set_current_timer_slack(Some(TIMER_SLACK_NS));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run_until_exit(&mut endpoint, shared, sleeps_at_once)
    }));
    if let Err(error) = outcome.unwrap_or_else(|_| Err(panicked())) {
        // The only place that sets it while the thread lives.
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
            let is_captured = shared.control.is_captured();
            match last_progress.elapsed() {
                idle_for if !sleeps_at_once => back_off(idle_for, step.is_idle, is_captured),
                idle_for if idle_for < SHORT_SLEEP_UNTIL => std::thread::park_timeout(SHORT_SLEEP),
                idle_for => back_off(idle_for, step.is_idle, false),
            }
        }
    };
    let end = drive(&shared.control, step, idle)?;
    let endpoint = endpoint.into_inner();
    match end {
        Exit::Stopped if let Some(lost_rank) = shared.lost_rank.get() => {
            announce_loss(endpoint, *lost_rank);
            Ok(())
        }
        Exit::Stopped if !endpoint.is_idle() => Err(not_drained(endpoint)),
        Exit::Stopped => Ok(()),
        Exit::Drained => close_handshake(endpoint, shared),
    }
}

/// A peer that does not hear it in time will find the endpoint lost; one that does not answer in time may find so too.
fn close_handshake(endpoint: &mut Endpoint, shared: &Shared) -> Result<(), FabricError> {
    let start = Instant::now();
    endpoint.close();
    loop {
        let now = Instant::now();
        endpoint.step(now)?;
        if endpoint.is_closed() || shared.is_past_drain(now) {
            return Ok(());
        }
        back_off(start.elapsed(), false, false);
    }
}

/// Tells peers why.
fn announce_loss(endpoint: &mut Endpoint, lost_rank: u32) {
    let start = Instant::now();
    endpoint.close_after_loss(lost_rank);
    while !endpoint.is_closed() && start.elapsed() < ABORT_LIMIT {
        // It has failed already.
        let _ = endpoint.step(Instant::now());
        back_off(start.elapsed(), false, false);
    }
}

fn panicked() -> FabricError {
    let reason = "the proxy's thread panicked: a defect of mkernel".to_owned();
    FabricError::Nic { reason }
}

fn not_drained(endpoint: &Endpoint) -> FabricError {
    FabricError::NotDrained {
        pending: endpoint.pending() as u64,
        limit: Duration::ZERO,
    }
}

/// What a thread without work does before it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    Sleep(Duration),
}

fn pause(idle_for: Duration, is_idle: bool, is_captured: bool) -> Pause {
    let yield_for = match (is_idle, is_captured) {
        (_, true) => CAPTURED_YIELD_UNTIL,
        (true, false) => YIELD_UNTIL,
        (false, false) => SHORT_SLEEP_UNTIL,
    };
    if idle_for < SPIN_UNTIL {
        Pause::Spin
    } else if idle_for < yield_for {
        Pause::Yield
    } else if idle_for < SHORT_SLEEP_UNTIL || !is_idle || is_captured {
        Pause::Sleep(SHORT_SLEEP)
    } else {
        Pause::Sleep(LONG_SLEEP)
    }
}

fn back_off(idle_for: Duration, is_idle: bool, is_captured: bool) {
    match pause(idle_for, is_idle, is_captured) {
        Pause::Spin => std::hint::spin_loop(),
        Pause::Yield => std::thread::yield_now(),
        Pause::Sleep(sleep) => std::thread::park_timeout(sleep),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_sleeps_longer_the_longer_it_has_been_idle() {
        let after = |ms, is_idle| pause(Duration::from_millis(ms), is_idle, false);
        for is_idle in [false, true] {
            assert_eq!(after(0, is_idle), Pause::Spin);
        }
        assert_eq!(
            (after(0, true), after(2, true)),
            (Pause::Spin, Pause::Sleep(SHORT_SLEEP))
        );
        assert_eq!(after(30, true), Pause::Sleep(LONG_SLEEP));
        assert_eq!(
            (after(2, false), after(30, false)),
            (Pause::Yield, Pause::Sleep(SHORT_SLEEP))
        );
    }

    #[test]
    fn a_captured_proxy_yields_between_replays_and_never_sleeps_long() {
        for is_idle in [false, true] {
            let after = |ms| pause(Duration::from_millis(ms), is_idle, true);
            for ms in [1, 5, 20, 49] {
                assert_eq!(after(ms), Pause::Yield, "{ms} ms");
            }
            for ms in [50, 1000, 1_000_000] {
                assert_eq!(after(ms), Pause::Sleep(SHORT_SLEEP), "{ms} ms");
            }
        }
    }
}
