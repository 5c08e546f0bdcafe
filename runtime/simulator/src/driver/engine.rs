//! The engine: the thread that drives the world of a host. It decides when work starts and when simulated time passes.
//!
//! The world advances only while threads of the program wait. If there are kernels, the engine first waits until every
//! GPU in use has a waiting thread. Then everything that the ranks have enqueued takes part, whatever the order of
//! their threads was, so equal seeds give equal runs. If the thread of a rank does something else, the engine continues
//! without it after a short time.
//!
//! Simulated time stands still while work can continue, and jumps when none can. If every rank waits, it jumps at once,
//! since nothing else can happen. Otherwise it keeps pace with real time. So for a rank that comes late, or after an
//! abort, kernels have waited no longer than on real GPUs.

use super::host::{Host, HostPhase, HostState, Standstill};
use super::{Advance, Finding, Moment, Outcome, TaskId, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// The time for which the engine waits for other ranks before the world continues without these ranks.
const START_GRACE: Duration = Duration::from_millis(20);
/// The duration of a standstill before time jumps, while every GPU has a waiting thread or a kernel. Meanwhile, threads
/// of the program may react to pinned memory and enqueue copies.
const STANDSTILL_GRACE: Duration = Duration::from_millis(300);
/// The time for which the engine sleeps between two checks whether the program has done the work for which GPUs wait.
const BUSY_CHECK_INTERVAL: Duration = Duration::from_micros(500);
/// The time for which the engine sleeps, unless it is woken, while some work cannot start.
const IDLE: Duration = Duration::from_millis(100);
/// The time for which the engine sleeps, unless it is woken, while no thread waits.
const UNUSED: Duration = Duration::from_secs(3600);

/// Drives the host's world until the host closes. Sends to `ready` when the world exists.
pub(super) fn run(host: &Arc<Host>, ready: &mpsc::Sender<()>) {
    let ended = catch_unwind(AssertUnwindSafe(|| drive(host, ready)));
    if ended.is_err() {
        tracing::error!(
            host = host.index,
            "the simulator panicked; its GPUs cannot be used any more"
        );
        host.end(HostPhase::Dead);
    }
}

/// The next action of the engine.
#[derive(Debug, PartialEq, Eq)]
enum EngineAction {
    Stop,
    Sleep(Duration),
    Advance,
    /// Let simulated time jump. If the standstill is a deadlock, report it.
    Jump {
        is_deadlock: bool,
    },
}

fn drive(host: &Host, ready: &mpsc::Sender<()>) {
    let mut world = World::new(host.options.world.clone());
    let _ = ready.send(());
    let mut state = host.lock();
    loop {
        while let Some(request) = state.requests.pop_front() {
            request(&mut world, &mut state);
        }
        if state.phase == HostPhase::Open && state.waits_for_busy_checks() {
            let slept = host.engine_wakeup.wait_timeout(state, BUSY_CHECK_INTERVAL);
            (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
            state.standstill = None;
        }
        match state.next_action(Instant::now()) {
            EngineAction::Stop => return,
            EngineAction::Sleep(limit) => {
                let slept = host.engine_wakeup.wait_timeout(state, limit);
                (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            EngineAction::Advance => {}
            // Since the world last read pinned memory, a part of the program may have written there and become idle.
            EngineAction::Jump { .. } if world.look_at_host() => state.standstill = None,
            EngineAction::Jump { is_deadlock } => {
                let jumped = Duration::from_nanos(world.let_time_pass(is_deadlock));
                if let Some(standstill) = &mut state.standstill {
                    standstill.next_jump = Instant::now() + jumped;
                }
            }
        }
        let has_started = state.start(&mut world);
        host.notify_waiters();
        drop(state);
        let advance = world.advance();
        let (finished, findings) = (world.take_finished(), world.take_findings());
        let has_aborted = world.has_aborted();
        let has_finished = !finished.is_empty();
        let has_moved = has_started || has_finished;
        state = host.lock();
        state.settle((finished, findings), has_aborted, host);
        state.record_progress(advance, has_finished, Instant::now());
        if advance == Advance::Idle && !has_moved && !state.has_news() {
            let slept = host.engine_wakeup.wait_timeout(state, IDLE);
            (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl HostState {
    /// Returns whether work, requests or the end have come since the engine last checked.
    fn has_news(&self) -> bool {
        self.streams.has_new() || !self.requests.is_empty() || self.phase != HostPhase::Open
    }

    /// Decides the next action of the engine.
    fn next_action(&self, now: Instant) -> EngineAction {
        if self.phase != HostPhase::Open {
            return EngineAction::Stop;
        }
        if self.waits.values().all(|wait| wait.is_over()) {
            return EngineAction::Sleep(UNUSED);
        }
        let all_wait = self.is_given_up || self.every_gpu_waits();
        let quiet = now.saturating_duration_since(self.last_call);
        if !all_wait && quiet < START_GRACE && self.streams.has_kernels() {
            return EngineAction::Sleep(START_GRACE - quiet);
        }
        let Some(standstill) = self.standstill.filter(|standstill| standstill.continues) else {
            return EngineAction::Advance;
        };
        // Running kernels may wait for kernels that cannot start. These kernels start when the waits of the running
        // kernels have ended.
        let is_deadlock = !self.streams.wait_for_sms()
            && self.every_gpu(|device| self.streams.runs_kernel(device))
            && !self.lacks_launch();
        let grace = match is_deadlock || all_wait {
            true => STANDSTILL_GRACE,
            false => START_GRACE,
        };
        let mut jump_at = standstill.since + grace;
        if !all_wait {
            jump_at = jump_at.max(standstill.next_jump);
        }
        if now < jump_at {
            return EngineAction::Sleep(jump_at - now);
        }
        EngineAction::Jump { is_deadlock }
    }

    /// Returns whether every GPU in use has a waiting thread.
    fn every_gpu_waits(&self) -> bool {
        let waits = |device| {
            self.waits
                .values()
                .any(|wait| wait.device == device && !wait.is_over())
        };
        self.every_gpu(waits)
    }

    /// Returns whether a condition holds for every GPU in use.
    fn every_gpu(&self, holds: impl Fn(u32) -> bool) -> bool {
        (0..)
            .zip(&self.devices)
            .all(|(device, gpu)| gpu.retains == 0 || holds(device))
    }

    /// Starts all work that can start. Returns whether any work started.
    fn start(&mut self, world: &mut World) -> bool {
        let devices = &self.devices;
        let is_failed = |device: u32| devices.get(device as usize).is_none_or(|gpu| gpu.is_failed);
        let started = self.streams.start(world, is_failed);
        for address in started.freed {
            // The address was checked when the operation was enqueued. Freeing fails if the program has freed it twice.
            if let Err(code) = self.memory.free(world, address) {
                tracing::error!(address, ?code, "cuMemFreeAsync");
            }
        }
        started.any
    }

    /// Records the finished work and the findings of the world.
    fn settle(
        &mut self,
        (finished, findings): (Vec<(TaskId, Outcome, Moment)>, Vec<Finding>),
        has_aborted: bool,
        host: &Host,
    ) {
        self.findings.extend(findings);
        let waiting = |state: &Self| state.waits.values().filter(|w| !w.is_over()).count();
        let waited = waiting(self);
        let has_finished = !finished.is_empty();
        for (task, outcome, moment) in finished {
            if let Some((device, reason)) = self.streams.finish(task, outcome, moment, has_aborted)
            {
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
            // A thread of the program continues. It gets time to enqueue more work.
            self.last_call = Instant::now();
        }
        if has_finished {
            host.notify_waiters();
        }
    }

    /// Records whether work can continue.
    fn record_progress(&mut self, advance: Advance, has_finished: bool, now: Instant) {
        // Work may have been enqueued while the world advanced.
        let before = self.standstill.filter(|_| !has_finished);
        self.standstill = match advance {
            _ if self.streams.has_new() => None,
            Advance::Idle => None,
            Advance::Busy => before.map(|before| Standstill {
                continues: false,
                ..before
            }),
            Advance::Stuck => Some(Standstill {
                since: before.map_or(now, |before| before.since),
                continues: true,
                next_jump: before.map_or(now, |before| before.next_jump),
            }),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::completion::{Completion, StreamPoint};
    use super::super::host::HostWait;
    use super::super::stream::StreamOp;
    use super::super::streams::StreamId;
    use super::super::tests::options;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns a host with two GPUs in use. A thread waits for the first one.
    fn host() -> Host {
        let host = Host::new(0, options(2));
        let mut state = host.lock();
        state.devices.iter_mut().for_each(|gpu| gpu.retains = 1);
        wait(&mut state, 0);
        drop(state);
        host
    }

    fn wait(state: &mut HostState, device: u32) {
        let point = StreamPoint::end_of(&Completion::default());
        // The ID of a thread that has ended is not used again.
        let thread = std::thread::spawn(|| std::thread::current().id());
        let thread = thread.join().expect("no panic");
        state.waits.insert(thread, HostWait { device, point });
    }

    fn push(state: &mut HostState) {
        let stream = StreamId::default_of(0);
        let pushed = state
            .streams
            .push(stream, StreamOp::Marker, Vec::new(), Moment::default());
        pushed.expect("pushed");
    }

    #[test]
    fn nothing_runs_while_no_thread_waits() {
        let host = Host::new(0, options(1));
        assert_eq!(
            host.lock().next_action(Instant::now()),
            EngineAction::Sleep(UNUSED)
        );
    }

    #[test]
    fn time_jumps_at_once_if_all_wait_and_else_keeps_pace() {
        let host = host();
        let mut state = host.lock();
        let now = Instant::now();
        let jump = EngineAction::Jump { is_deadlock: false };
        state.record_progress(Advance::Stuck, false, now);
        assert_eq!(
            state.next_action(now),
            EngineAction::Sleep(START_GRACE),
            "one GPU has no waiting thread"
        );
        assert_eq!(state.next_action(now + START_GRACE), jump);
        if let Some(standstill) = &mut state.standstill {
            standstill.next_jump = now + 50 * MS;
        }
        state.record_progress(Advance::Busy, false, now + START_GRACE);
        assert_eq!(
            state.next_action(now + START_GRACE),
            EngineAction::Advance,
            "kernels read the time"
        );
        state.record_progress(Advance::Stuck, false, now + START_GRACE);
        assert_eq!(
            state.next_action(now + 40 * MS),
            EngineAction::Sleep(10 * MS),
            "in pace with real time"
        );

        state.is_given_up = true;
        assert_eq!(
            state.next_action(now + STANDSTILL_GRACE),
            jump,
            "no thread is expected"
        );
        state.is_given_up = false;

        wait(&mut state, 1);
        assert_eq!(
            state.next_action(now + 40 * MS),
            EngineAction::Sleep(STANDSTILL_GRACE - 40 * MS)
        );
        assert_eq!(state.next_action(now + STANDSTILL_GRACE), jump, "all wait");
    }

    #[test]
    fn work_that_comes_while_the_world_advances_ends_a_standstill() {
        let host = host();
        let mut state = host.lock();
        let now = Instant::now();
        state.record_progress(Advance::Stuck, false, now);
        push(&mut state);
        state.record_progress(Advance::Stuck, false, now);
        assert_eq!(
            state.next_action(now + STANDSTILL_GRACE),
            EngineAction::Advance
        );
    }
}
