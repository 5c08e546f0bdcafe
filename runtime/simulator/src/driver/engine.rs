//! The thread that drives the world of a host: when work starts, and when simulated time may pass.
//!
//! The world advances only while threads of the program wait. While kernels are about, it does so once every GPU in
//! use has a waiting thread: then all that the ranks have enqueued takes part, whatever their threads' order was, and
//! equal seeds give equal runs. Where a rank does something else meanwhile, the others go on after a short while.

use super::host::{Host, Phase, Standstill, State};
use super::{Advance, Finding, Moment, Outcome, TaskId, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long other ranks are waited for before the world goes on without them.
const START_GRACE: Duration = Duration::from_millis(20);
/// How long a standstill lasts while every GPU has a waiting thread: others may have seen something in pinned memory,
/// and be about to enqueue copies.
const STANDSTILL_GRACE: Duration = Duration::from_millis(200);
/// How often the engine looks whether pinned memory ended a standstill.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long the engine sleeps when it has nothing to do, unless it is woken.
const IDLE: Duration = Duration::from_millis(100);

/// Drives the host's world until the host closes. Tells `ready` once the world is there.
pub(super) fn run(host: &Arc<Host>, ready: &mpsc::Sender<()>) {
    let ended = catch_unwind(AssertUnwindSafe(|| drive(host, ready)));
    if ended.is_err() {
        tracing::error!(
            host = host.index,
            "the simulator panicked; its GPUs are out of use"
        );
        host.end(Phase::Dead);
    }
}

/// What the engine does next.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Stop,
    Sleep(Duration),
    Advance,
    /// Lets time pass, and says who waits for what if that is a deadlock.
    Jump {
        is_deadlock: bool,
    },
}

fn drive(host: &Host, ready: &mpsc::Sender<()>) {
    let mut world = World::new(host.options.world.clone());
    let _ = ready.send(());
    let mut state = host.lock();
    loop {
        while let Some(ask) = state.asks.pop_front() {
            ask(&mut world, &mut state);
        }
        match state.turn(Instant::now()) {
            Turn::Stop => return,
            Turn::Sleep(limit) => {
                let slept = host.bell.wait_timeout(state, limit);
                (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            Turn::Advance => {}
            Turn::Jump { is_deadlock } => {
                world.let_time_pass(is_deadlock);
                state.standstill = None;
            }
        }
        let has_started = state.start(&mut world);
        host.announce();
        drop(state);
        let advance = world.advance();
        let (finished, findings) = (world.take_finished(), world.take_findings());
        let has_moved = has_started || !finished.is_empty();
        state = host.lock();
        state.settle(finished, findings, host);
        state.note(advance, Instant::now());
        if advance == Advance::Idle && !has_moved && state.asks.is_empty() {
            let slept = host.bell.wait_timeout(state, IDLE);
            (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn turn(&self, now: Instant) -> Turn {
        if self.phase != Phase::Open {
            return Turn::Stop;
        }
        if self.waits.values().all(|wait| wait.is_over()) {
            return Turn::Sleep(Duration::MAX.min(Duration::from_secs(3600)));
        }
        let all_wait = self.every_gpu_waits();
        let quiet = now.saturating_duration_since(self.last_call);
        if !all_wait && quiet < START_GRACE && self.queues.has_kernels() {
            return Turn::Sleep(START_GRACE - quiet);
        }
        let Some(standstill) = self.standstill else {
            return Turn::Advance;
        };
        let grace = if all_wait {
            STANDSTILL_GRACE
        } else {
            self.patience
        };
        if now >= standstill.since + grace {
            let is_deadlock = self.every_gpu(|device| self.queues.runs_kernel(device));
            return Turn::Jump { is_deadlock };
        }
        if now >= standstill.look_again {
            return Turn::Advance;
        }
        Turn::Sleep(standstill.look_again - now)
    }

    fn every_gpu_waits(&self) -> bool {
        let waits = |device| {
            self.waits
                .values()
                .any(|wait| wait.device == device && !wait.is_over())
        };
        self.every_gpu(waits)
    }

    /// Whether something holds for every GPU that is in use.
    fn every_gpu(&self, holds: impl Fn(u32) -> bool) -> bool {
        (0..)
            .zip(&self.devices)
            .all(|(device, gpu)| gpu.retains == 0 || holds(device))
    }

    /// Starts what can start; whether anything did.
    fn start(&mut self, world: &mut World) -> bool {
        let devices = &self.devices;
        let is_failed = |device: u32| devices.get(device as usize).is_none_or(|gpu| gpu.is_failed);
        let started = self.queues.start(world, is_failed);
        for address in started.freed {
            // The address was checked when this was enqueued; who frees it twice is told by this.
            if let Err(code) = self.memory.free(world, address) {
                tracing::error!(address, ?code, "cuMemFreeAsync");
            }
        }
        started.any
    }

    /// Takes note of what the world finished and found.
    fn settle(
        &mut self,
        finished: Vec<(TaskId, Outcome, Moment)>,
        findings: Vec<Finding>,
        host: &Host,
    ) {
        self.findings.extend(findings);
        let waiting = |state: &Self| state.waits.values().filter(|w| !w.is_over()).count();
        let waited = waiting(self);
        let has_finished = !finished.is_empty();
        for (task, outcome, moment) in finished {
            if let Some((device, reason)) = self.queues.finish(task, outcome, moment) {
                tracing::error!(host = host.index, device, reason, "a kernel failed");
                let text = format!("the kernel on GPU {device} failed: {reason}");
                self.findings.push(Finding {
                    kind: "failure",
                    text,
                });
                if let Some(gpu) = self.devices.get_mut(device as usize) {
                    gpu.is_failed = true;
                }
            }
        }
        if waiting(self) < waited {
            // A rank goes on; give it time to enqueue more.
            self.last_call = Instant::now();
        }
        if has_finished {
            host.announce();
        }
    }

    fn note(&mut self, advance: Advance, now: Instant) {
        self.standstill = match (advance, self.standstill) {
            (Advance::Stuck, before) => Some(Standstill {
                since: before.map_or(now, |standstill| standstill.since),
                look_again: now + LOOK_AGAIN,
            }),
            _ => None,
        };
    }
}
