//! The thread that drives the world of a host: when work starts, and when simulated time may pass.
//!
//! The world advances only while threads of the program wait. While kernels are about, it does so once every GPU in
//! use has a waiting thread: then all that the ranks have enqueued takes part, whatever their threads' order was, and
//! equal seeds give equal runs. Where a rank does something else meanwhile, the others go on after a short while.
//!
//! Simulated time stands still while work can go on, and jumps when none can. If every rank waits, it jumps at once,
//! for nothing else can happen. If not, it keeps pace with real time, so that a rank which comes late, or an abort,
//! finds kernels waiting as long as on GPUs.

use super::host::{Host, Phase, Standstill, State};
use super::{Advance, Finding, Moment, Outcome, TaskId, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long other ranks are waited for before the world goes on without them.
const START_GRACE: Duration = Duration::from_millis(20);
/// How long a standstill lasts before time jumps, while every GPU has a waiting thread or a kernel: threads may have
/// seen something in pinned memory, and be about to enqueue copies.
const STANDSTILL_GRACE: Duration = Duration::from_millis(300);
/// How long the engine sleeps between two looks at whether the program has done what GPUs wait for.
const HELPERS: Duration = Duration::from_micros(500);
/// How long the engine sleeps when work is about that cannot start, unless it is woken.
const IDLE: Duration = Duration::from_millis(100);
/// The same while nobody waits for anything.
const UNUSED: Duration = Duration::from_secs(3600);

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
        if state.phase == Phase::Open && state.waits_for_helpers() {
            let slept = host.bell.wait_timeout(state, HELPERS);
            (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
            state.standstill = None;
        }
        match state.turn(Instant::now()) {
            Turn::Stop => return,
            Turn::Sleep(limit) => {
                let slept = host.bell.wait_timeout(state, limit);
                (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            Turn::Advance => {}
            // Helpers have ended since the last look at what they write: their last words may be news.
            Turn::Jump { .. } if world.look_at_host() => state.standstill = None,
            Turn::Jump { is_deadlock } => {
                let jumped = Duration::from_nanos(world.let_time_pass(is_deadlock));
                if let Some(standstill) = &mut state.standstill {
                    standstill.next_jump = Instant::now() + jumped;
                }
            }
        }
        let has_started = state.start(&mut world);
        host.announce();
        drop(state);
        let advance = world.advance();
        let (finished, findings) = (world.take_finished(), world.take_findings());
        let has_finished = !finished.is_empty();
        let has_moved = has_started || has_finished;
        state = host.lock();
        state.settle(finished, findings, host);
        state.note(advance, has_finished, Instant::now());
        if advance == Advance::Idle && !has_moved && !state.has_news() {
            let slept = host.bell.wait_timeout(state, IDLE);
            (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    /// Whether the engine has something to do that it did not have before.
    fn has_news(&self) -> bool {
        self.queues.has_new() || !self.asks.is_empty() || self.phase != Phase::Open
    }

    fn turn(&self, now: Instant) -> Turn {
        if self.phase != Phase::Open {
            return Turn::Stop;
        }
        if self.waits.values().all(|wait| wait.is_over()) {
            return Turn::Sleep(UNUSED);
        }
        let all_wait = self.is_given_up || self.every_gpu_waits();
        let quiet = now.saturating_duration_since(self.last_call);
        if !all_wait && quiet < START_GRACE && self.queues.has_kernels() {
            return Turn::Sleep(START_GRACE - quiet);
        }
        let Some(standstill) = self.standstill.filter(|standstill| standstill.goes_on) else {
            return Turn::Advance;
        };
        let is_deadlock = self.every_gpu(|device| self.queues.runs_kernel(device));
        let grace = match is_deadlock || all_wait {
            true => STANDSTILL_GRACE,
            false => START_GRACE,
        };
        let mut jump_at = standstill.since + grace;
        if !all_wait {
            jump_at = jump_at.max(standstill.next_jump);
        }
        if now < jump_at {
            return Turn::Sleep(jump_at - now);
        }
        Turn::Jump { is_deadlock }
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

    /// Takes note of whether the world stands still.
    fn note(&mut self, advance: Advance, has_finished: bool, now: Instant) {
        // Work may have come while it was found to.
        let before = self.standstill.filter(|_| !has_finished);
        self.standstill = match advance {
            _ if self.queues.has_new() => None,
            Advance::Idle => None,
            Advance::Busy => before.map(|before| Standstill {
                goes_on: false,
                ..before
            }),
            Advance::Stuck => Some(Standstill {
                since: before.map_or(now, |before| before.since),
                goes_on: true,
                next_jump: before.map_or(now, |before| before.next_jump),
            }),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::Wait;
    use super::super::queue::{Point, Step, StreamId, Ticket};
    use super::super::tests::options;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A host with two GPUs in use, on the first of which a thread waits.
    fn host() -> Host {
        let host = Host::new(0, options(2));
        let mut state = host.lock();
        state.devices.iter_mut().for_each(|gpu| gpu.retains = 1);
        wait(&mut state, 0);
        drop(state);
        host
    }

    fn wait(state: &mut State, device: u32) {
        let point = Point::end_of(&Ticket::default());
        // A thread that is over keeps its number for itself.
        let thread = std::thread::spawn(|| std::thread::current().id());
        let thread = thread.join().expect("no panic");
        state.waits.insert(thread, Wait { device, point });
    }

    fn push(state: &mut State) {
        let stream = StreamId::default_of(0);
        let pushed = state
            .queues
            .push(stream, Step::Marker, Vec::new(), Moment::default());
        pushed.expect("pushed");
    }

    #[test]
    fn nobody_waits_so_nothing_runs() {
        let host = Host::new(0, options(1));
        assert_eq!(host.lock().turn(Instant::now()), Turn::Sleep(UNUSED));
    }

    #[test]
    fn time_jumps_at_once_when_all_wait_and_in_pace_when_not() {
        let host = host();
        let mut state = host.lock();
        let now = Instant::now();
        let jump = Turn::Jump { is_deadlock: false };
        state.note(Advance::Stuck, false, now);
        assert_eq!(state.turn(now), Turn::Sleep(START_GRACE), "a rank is away");
        assert_eq!(state.turn(now + START_GRACE), jump);
        if let Some(standstill) = &mut state.standstill {
            standstill.next_jump = now + 50 * MS;
        }
        state.note(Advance::Busy, false, now + START_GRACE);
        assert_eq!(
            state.turn(now + START_GRACE),
            Turn::Advance,
            "kernels look at the time"
        );
        state.note(Advance::Stuck, false, now + START_GRACE);
        assert_eq!(state.turn(now + 40 * MS), Turn::Sleep(10 * MS), "in pace");

        state.is_given_up = true;
        assert_eq!(state.turn(now + STANDSTILL_GRACE), jump, "nobody comes");
        state.is_given_up = false;

        wait(&mut state, 1);
        assert_eq!(
            state.turn(now + 40 * MS),
            Turn::Sleep(STANDSTILL_GRACE - 40 * MS)
        );
        assert_eq!(state.turn(now + STANDSTILL_GRACE), jump, "all wait");
    }

    #[test]
    fn what_comes_during_a_look_ends_a_standstill() {
        let host = host();
        let mut state = host.lock();
        let now = Instant::now();
        state.note(Advance::Stuck, false, now);
        push(&mut state);
        state.note(Advance::Stuck, false, now);
        assert_eq!(state.turn(now + STANDSTILL_GRACE), Turn::Advance);
    }
}
