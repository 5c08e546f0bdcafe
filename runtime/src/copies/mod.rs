//! Copy-engine transfer: a thread per communicator watches the doorbells of its operators and enqueues the copies.
//!
//! A kernel rings when it starts, so copies never run ahead of the caller's stream, and graph replays need nothing
//! of the host's program. Every chunk goes to the peers in turn, a flag behind each; when all chunks of a peer have
//! left, the sender's own `sent` word says so, and the kernel ends only then: the caller may reuse A.
//!
//! A kernel that gives up its waits ends when there are no copies of it either: it withdraws from those that the thread
//! has not claimed yet, and waits for the thread's answer where it has. See `withdraw_copies` in mk/comm/host_copies.cuh.

mod schedule;
mod streams;

use crate::driver::{self, Event};
use crate::error::Error;
use crate::operands::RawOperand;
use crate::report::Page;
use crate::symmetric::Symmetric;
use cudarc::driver::CudaContext;
use mkernel_spec::abi::State;
use mkernel_spec::plan::Copies;
use schedule::{schedule, transfer};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use streams::Streams;

/// How eagerly the thread looks at the doorbells.
struct Pace {
    /// How long it spins after the last sign of life, so that back-to-back calls find it awake.
    spin: Duration,
    /// The same while a launched kernel has not rung yet: it may stand behind long work of the caller's.
    spin_for_launched: Duration,
    /// Replays of graphs ring without a launch: once a launch was captured, the thread lets others go first so long after
    /// the last sign of life, which is more than a step of most models takes.
    yield_for_captured: Duration,
    /// How long it sleeps between two looks after that.
    sleep: Duration,
}

const PACE: Pace = Pace {
    spin: Duration::from_millis(2),
    spin_for_launched: Duration::from_millis(100),
    yield_for_captured: Duration::from_millis(50),
    sleep: Duration::from_micros(50),
};

/// What the thread does before it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    Sleep,
}

impl Pace {
    fn pause(
        &self,
        silence: Duration,
        is_expected: impl Fn() -> bool,
        is_captured: impl Fn() -> bool,
    ) -> Pause {
        if silence < self.spin || (silence < self.spin_for_launched && is_expected()) {
            Pause::Spin
        } else if silence < self.yield_for_captured && is_captured() {
            Pause::Yield
        } else {
            Pause::Sleep
        }
    }
}

/// Simulated GPUs are slow, and need the CPU themselves.
const SIMULATED_PACE: Pace = Pace {
    spin: Duration::ZERO,
    spin_for_launched: Duration::ZERO,
    yield_for_captured: Duration::ZERO,
    sleep: Duration::from_millis(1),
};
/// How long it sleeps while no operator uses copies.
const SLEEP_UNUSED: Duration = Duration::from_secs(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these mutexes guard is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread does for one operator.
pub(crate) struct Job {
    copies: Copies,
    rank: u32,
    world: u32,
    page: Arc<Page>,
    workspace: Arc<Symmetric>,
    /// Whether a launched kernel has not rung yet.
    expected: AtomicBool,
    /// Whether a launch was captured.
    captured: AtomicBool,
    /// The epoch served last.
    served: AtomicU32,
    /// Whether the operator lives. Held while serving, so that dropping it waits for that.
    live: Mutex<bool>,
    failure: Mutex<Option<Error>>,
    /// Tests hold them to stop the thread before its claim, and between that and the copies.
    #[cfg(test)]
    pub pauses: [Mutex<()>; 2],
}

impl Job {
    pub fn new(
        copies: Copies,
        rank: u32,
        world: u32,
        page: Arc<Page>,
        workspace: Arc<Symmetric>,
    ) -> Self {
        Self {
            copies,
            rank,
            world,
            page,
            workspace,
            expected: AtomicBool::new(false),
            captured: AtomicBool::new(false),
            served: AtomicU32::new(0),
            live: Mutex::new(true),
            failure: Mutex::default(),
            #[cfg(test)]
            pauses: Default::default(),
        }
    }

    /// Whether a kernel has rung and was not served yet, or waits for an answer.
    pub fn is_busy(&self) -> bool {
        #[cfg(test)]
        if self.pauses.iter().any(|pause| pause.try_lock().is_err()) {
            return false;
        }
        let served = self.served.load(Ordering::Relaxed);
        self.page.doorbell() != served || self.owes_answer(served)
    }

    fn owes_answer(&self, served: u32) -> bool {
        self.page.is_withdrawn() && self.page.answered() != served
    }

    /// Announces a launch, for which the thread then looks out.
    pub fn expect(&self) {
        self.expected.store(true, Ordering::Relaxed);
    }

    /// Announces replays, which ring without a launch.
    pub fn capture(&self) {
        self.captured.store(true, Ordering::Relaxed);
    }

    /// Why copies could not be enqueued, if they could not.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.failure).clone()
    }

    fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    fn is_expected(&self) -> bool {
        self.expected.load(Ordering::Relaxed)
    }

    /// Serves the doorbell if it rang. True if it did.
    fn poll(&self, engine: &Streams) -> bool {
        let epoch = self.page.doorbell();
        let served = self.served.load(Ordering::Relaxed);
        if epoch == served {
            return self.owes_answer(served) && self.answer(engine, served);
        }
        let live = lock(&self.live);
        self.served.store(epoch, Ordering::Relaxed);
        self.expected.store(false, Ordering::Relaxed);
        if !*live {
            return true;
        }
        #[cfg(test)]
        drop(lock(&self.pauses[0]));
        // After an abort nobody waits for the copies.
        if !self.page.claim(epoch) || self.page.is_aborted() {
            self.page.answer(epoch);
            return true;
        }
        #[cfg(test)]
        drop(lock(&self.pauses[1]));
        let a = self.page.copy_source();
        // SAFETY: the kernel that rang had not withdrawn when its copies were claimed. So it runs until all of them have
        // left, which `sent` says, or, if it gives up, until the answer to this epoch, which comes only when the streams
        // are done; or it traps, after which nothing runs in the context any more. Its caller keeps A until then. The
        // workspaces are mapped while the operator lives, which waits for these streams when it is dropped.
        if let Err(error) = unsafe { self.enqueue(engine, epoch, a) } {
            self.fail(error);
        }
        true
    }

    /// Answers a kernel that has given up, once its copies are over. True if it did.
    fn answer(&self, engine: &Streams, epoch: u32) -> bool {
        match engine.are_done() {
            Ok(true) => {}
            Ok(false) => return false,
            // Copies do not go on in such a context, nor do kernels.
            Err(error) if driver::has_ended_context(&error) => {}
            Err(error) => {
                self.fail(error);
                return false;
            }
        }
        self.page.answer(epoch);
        true
    }

    /// Ends all waits of the kernel, because of the first error.
    fn fail(&self, error: Error) {
        lock(&self.failure).get_or_insert(error);
        self.page.abort();
    }

    /// # Safety
    /// A and the workspaces must stay until the copies are done.
    unsafe fn enqueue(&self, engine: &Streams, epoch: u32, a: RawOperand) -> Result<(), Error> {
        let workspaces = self.workspace.addresses();
        for step in schedule(&self.copies, self.rank, self.world) {
            let stream = engine.to(step.peer, self.rank);
            let copy = transfer(
                &self.copies,
                self.rank,
                epoch,
                &step,
                a,
                workspaces[step.peer as usize],
            );
            // SAFETY: by the caller; the plan's offsets lie inside the workspaces.
            unsafe {
                engine.copy(stream, &copy)?;
                engine.write_flag(stream, copy.flag, epoch, &self.page)?;
            }
        }
        let own = workspaces[self.rank as usize];
        for peer in (0..self.world).filter(|peer| *peer != self.rank) {
            let sent = own + (offset_of!(State, sent) + 4 * peer as usize) as u64;
            // SAFETY: as above.
            unsafe { engine.write_flag(engine.to(peer, self.rank), sent, epoch, &self.page)? };
        }
        Ok(())
    }
}

struct Shared {
    jobs: Mutex<Vec<Arc<Job>>>,
    /// Grows with every change of `jobs`.
    changes: AtomicU64,
    nudged: AtomicBool,
    stop: AtomicBool,
}

/// The thread. Dropping this ends it.
pub(crate) struct CopyThread {
    shared: Arc<Shared>,
    streams: Arc<Streams>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl CopyThread {
    pub fn start(
        ctx: &Arc<CudaContext>,
        (rank, world): (u32, u32),
        is_simulated: bool,
    ) -> Result<Self, Error> {
        let streams = Arc::new(Streams::new(ctx, world)?);
        let shared = Arc::new(Shared {
            jobs: Mutex::default(),
            changes: AtomicU64::new(0),
            nudged: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let (ctx, theirs, engine) = (ctx.clone(), shared.clone(), streams.clone());
        let thread = std::thread::Builder::new()
            .name(format!("mkernel-copies-{rank}"))
            .spawn(move || {
                // A failure here shows again, with a place to report it, at the first copy.
                let ready = driver::bind(&ctx).and_then(|()| driver::ignore_captures_of_others());
                if let Err(error) = ready {
                    tracing::warn!(error = crate::error::with_causes(&error), "copy thread");
                }
                let pace = if is_simulated { SIMULATED_PACE } else { PACE };
                serve(&theirs, &pace, |job| job.poll(&engine));
            })
            .map_err(|source| Error::Os {
                call: "spawning the copy thread",
                source: Arc::new(source),
            })?;
        Ok(Self {
            shared,
            streams,
            thread: Some(thread),
        })
    }

    pub fn add(&self, job: Arc<Job>) {
        lock(&self.shared.jobs).push(job);
        self.shared.changes.fetch_add(1, Ordering::Release);
        self.nudge();
    }

    /// Returns when the thread is done with `job` for good.
    pub fn remove(&self, job: &Arc<Job>) {
        *lock(&job.live) = false;
        lock(&self.shared.jobs).retain(|other| !Arc::ptr_eq(other, job));
        self.shared.changes.fetch_add(1, Ordering::Release);
        self.nudge();
    }

    /// The end of all copies so far.
    pub fn ends(&self, ctx: &Arc<CudaContext>) -> Result<Vec<Event>, Error> {
        self.streams.ends(ctx)
    }

    /// Tells the thread that a kernel will ring soon.
    pub fn nudge(&self) {
        self.shared.nudged.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the copy thread had panicked");
            }
        }
    }
}

/// Watches, also after a panic: kernels that have given up wait for an answer.
fn serve(shared: &Shared, pace: &Pace, poll: impl Fn(&Job) -> bool) {
    while catch_unwind(AssertUnwindSafe(|| watch(shared, pace, &poll))).is_err() {
        for job in lock(&shared.jobs).iter() {
            job.fail(Error::Os {
                call: "enqueueing copies",
                source: Arc::new(std::io::Error::other("the copy thread has panicked")),
            });
        }
        std::thread::sleep(pace.sleep);
    }
}

/// Polls all jobs until told to stop. `poll` says whether something happened.
fn watch(shared: &Shared, pace: &Pace, poll: impl Fn(&Job) -> bool) {
    let mut jobs: Vec<Arc<Job>> = Vec::new();
    let mut changes = u64::MAX;
    let mut last_sign = Instant::now();
    while !shared.stop.load(Ordering::Acquire) {
        let now_changes = shared.changes.load(Ordering::Acquire);
        if changes != now_changes {
            changes = now_changes;
            jobs.clone_from(&lock(&shared.jobs));
        }
        let mut sign = shared.nudged.swap(false, Ordering::AcqRel);
        for job in &jobs {
            sign |= poll(job);
        }
        if sign {
            last_sign = Instant::now();
            continue;
        }
        let silence = last_sign.elapsed();
        if jobs.is_empty() {
            std::thread::park_timeout(SLEEP_UNUSED);
        } else {
            let is_expected = || jobs.iter().any(|job| job.is_expected());
            let is_captured = || jobs.iter().any(|job| job.is_captured());
            match pace.pause(silence, is_expected, is_captured) {
                Pause::Spin => std::hint::spin_loop(),
                Pause::Yield => std::thread::yield_now(),
                Pause::Sleep => std::thread::park_timeout(pace.sleep),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_stays_awake_between_replays() {
        let after = |ms, is_captured| {
            let silence = Duration::from_millis(ms);
            PACE.pause(silence, || false, || is_captured)
        };
        for is_captured in [false, true] {
            assert_eq!(after(1, is_captured), Pause::Spin);
            assert_eq!(after(50, is_captured), Pause::Sleep);
        }
        assert_eq!(
            (after(10, false), after(10, true)),
            (Pause::Sleep, Pause::Yield)
        );
    }

    #[test]
    fn the_watch_wakes_for_a_nudge_and_ends_when_told() {
        let shared = Arc::new(Shared {
            jobs: Mutex::default(),
            changes: AtomicU64::new(0),
            nudged: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || watch(&theirs, &PACE, |_| false));
        let watcher = CopyThread {
            shared: shared.clone(),
            streams: Arc::default(),
            thread: Some(thread),
        };
        watcher.nudge();
        let started = Instant::now();
        while shared.nudged.load(Ordering::Acquire) {
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "the nudge was not seen"
            );
            std::thread::yield_now();
        }
        drop(watcher);
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
