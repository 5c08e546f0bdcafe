//! The thread that drives an endpoint.

use crate::control::{Control, End, Step, drive};
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
const SPIN: Duration = Duration::from_micros(50);
/// then lets other threads go first so long, and until [`DOZE`] if something is on its way from here,
const YIELD: Duration = Duration::from_millis(1);
/// then sleeps in naps,
const NAP: Duration = Duration::from_micros(50);
/// and after this, if nothing is on its way from here,
const DOZE: Duration = Duration::from_millis(20);
/// in longer ones. This, plus what the system takes to wake a thread, is how late a command or an arrival may be picked
/// up, unless [`Proxy::wake`] was called before. It costs about 2 % of a core.
pub const LONG_NAP: Duration = Duration::from_micros(500);
/// Replays of a graph call no [`Proxy::wake`]. Once a launch was captured, a proxy lets other threads go first until it has had
/// no work for so long, which is more than a step of most models takes, and then sleeps in naps, never in long ones.
const CAPTURED_YIELD: Duration = Duration::from_millis(50);

/// How long peers may take to hear why this endpoint gives up.
const FAREWELL: Duration = Duration::from_millis(100);

/// How the system may round a nap up; its default is 50 µs.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(5_000).unwrap();

/// Of a proxy's thread.
#[derive(Clone, Debug, Default)]
pub struct ProxyOptions {
    /// The cores it may run on: best one of the NIC's NUMA node that nothing else uses. Empty: any.
    pub cores: Vec<usize>,
    /// Naps at once when there is nothing to do, for 50 µs: where others, such as simulated GPUs, need the core.
    pub naps_at_once: bool,
}

struct Shared {
    control: Control,
    error: OnceLock<FabricError>,
    /// Whose loss its owner was told of.
    lost: OnceLock<u32>,
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
        let naps_at_once = options.naps_at_once;
        let shared = Arc::new(Shared {
            control: Control::new(),
            error: OnceLock::new(),
            lost: OnceLock::new(),
            start: Instant::now(),
        });
        let (theirs, (pinned, is_pinned)) = (Arc::clone(&shared), std::sync::mpsc::channel());
        let body = move || {
            let outcome = cores.map_or(Ok(()), |cores| sched_setaffinity(None, &cores));
            let may_run = outcome.is_ok();
            // The owner waits for it.
            let _ = pinned.send(outcome);
            if may_run {
                run(endpoint, &theirs, naps_at_once);
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
    /// [`FabricError::Ended`]; to others it is none.
    ///
    /// # Errors
    ///
    /// The first that this endpoint had; [`FabricError::Undrained`] if `limit` did not suffice.
    pub fn shutdown(mut self, limit: Duration) -> Result<(), FabricError> {
        let deadline = self.shared.start.elapsed().saturating_add(limit);
        self.shared.control.drain(ns(deadline));
        self.wake();
        self.join();
        match self.error() {
            Some(FabricError::Undrained { pending, .. }) => {
                Err(FabricError::Undrained { pending, limit })
            }
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Ends the thread at once, since `lost`, which may be no peer, is lost. Peers get [`FabricError::GaveUp`].
    pub fn give_up(self, lost: u32) {
        let _ = self.shared.lost.set(lost);
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
fn run(mut endpoint: Endpoint, shared: &Shared, naps_at_once: bool) {
    // Refused, naps are longer.
    let _ = set_current_timer_slack(Some(TIMER_SLACK_NS));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        live(&mut endpoint, shared, naps_at_once)
    }));
    if let Err(error) = outcome.unwrap_or_else(|_| Err(panicked())) {
        // The only place that sets it while the thread lives.
        let _ = shared.error.set(error.clone());
        if let Some(lost) = endpoint.abort(&error) {
            give_up(&mut endpoint, lost);
        }
    }
}

fn live(endpoint: &mut Endpoint, shared: &Shared, naps_at_once: bool) -> Result<(), FabricError> {
    let endpoint = RefCell::new(endpoint);
    let mut last_moved = Instant::now();
    let step = || {
        let now = Instant::now();
        let mut endpoint = endpoint.borrow_mut();
        let has_moved = endpoint.step(now)?;
        if shared.is_past_drain(now) {
            return Err(undrained(&endpoint));
        }
        Ok(Step {
            has_moved,
            is_idle: endpoint.is_idle(),
        })
    };
    let rest = |step: Step| {
        if step.has_moved || shared.control.was_woken() {
            last_moved = Instant::now();
        } else {
            let is_captured = shared.control.is_captured();
            match last_moved.elapsed() {
                idle_for if !naps_at_once => back_off(idle_for, step.is_idle, is_captured),
                idle_for if idle_for < DOZE => std::thread::park_timeout(NAP),
                idle_for => back_off(idle_for, step.is_idle, false),
            }
        }
    };
    let end = drive(&shared.control, step, rest)?;
    let endpoint = endpoint.into_inner();
    match end {
        End::Stopped if let Some(lost) = shared.lost.get() => {
            give_up(endpoint, *lost);
            Ok(())
        }
        End::Stopped if !endpoint.is_idle() => Err(undrained(endpoint)),
        End::Stopped => Ok(()),
        End::Drained => say_goodbye(endpoint, shared),
    }
}

/// A peer that does not hear it in time will find the endpoint lost; one that does not answer in time may find so too.
fn say_goodbye(endpoint: &mut Endpoint, shared: &Shared) -> Result<(), FabricError> {
    let start = Instant::now();
    endpoint.leave();
    loop {
        let now = Instant::now();
        endpoint.step(now)?;
        if endpoint.has_left() || shared.is_past_drain(now) {
            return Ok(());
        }
        back_off(start.elapsed(), false, false);
    }
}

/// Tells peers why.
fn give_up(endpoint: &mut Endpoint, lost: u32) {
    let start = Instant::now();
    endpoint.give_up(lost);
    while !endpoint.has_left() && start.elapsed() < FAREWELL {
        // It has failed already.
        let _ = endpoint.step(Instant::now());
        back_off(start.elapsed(), false, false);
    }
}

fn panicked() -> FabricError {
    let reason = "the proxy's thread panicked: a defect of mkernel".to_owned();
    FabricError::Nic { reason }
}

fn undrained(endpoint: &Endpoint) -> FabricError {
    FabricError::Undrained {
        pending: endpoint.pending() as u64,
        limit: Duration::ZERO,
    }
}

/// What a thread without work does before it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    Nap(Duration),
}

fn pause(idle_for: Duration, is_idle: bool, is_captured: bool) -> Pause {
    let yield_for = match (is_idle, is_captured) {
        (_, true) => CAPTURED_YIELD,
        (true, false) => YIELD,
        (false, false) => DOZE,
    };
    if idle_for < SPIN {
        Pause::Spin
    } else if idle_for < yield_for {
        Pause::Yield
    } else if idle_for < DOZE || !is_idle || is_captured {
        Pause::Nap(NAP)
    } else {
        Pause::Nap(LONG_NAP)
    }
}

fn back_off(idle_for: Duration, is_idle: bool, is_captured: bool) {
    match pause(idle_for, is_idle, is_captured) {
        Pause::Spin => std::hint::spin_loop(),
        Pause::Yield => std::thread::yield_now(),
        Pause::Nap(nap) => std::thread::park_timeout(nap),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_rests_longer_the_longer_it_has_had_no_work() {
        let after = |ms, is_idle| pause(Duration::from_millis(ms), is_idle, false);
        for is_idle in [false, true] {
            assert_eq!(after(0, is_idle), Pause::Spin);
        }
        assert_eq!(
            (after(0, true), after(2, true)),
            (Pause::Spin, Pause::Nap(NAP))
        );
        assert_eq!(after(30, true), Pause::Nap(LONG_NAP));
        assert_eq!(
            (after(2, false), after(30, false)),
            (Pause::Yield, Pause::Nap(NAP))
        );
    }

    #[test]
    fn a_captured_proxy_is_awake_between_replays_and_never_takes_a_long_nap() {
        for is_idle in [false, true] {
            let after = |ms| pause(Duration::from_millis(ms), is_idle, true);
            for ms in [1, 5, 20, 49] {
                assert_eq!(after(ms), Pause::Yield, "{ms} ms");
            }
            for ms in [50, 1000, 1_000_000] {
                assert_eq!(after(ms), Pause::Nap(NAP), "{ms} ms");
            }
        }
    }
}
