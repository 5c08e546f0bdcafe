//! [`CopyThread`]: the thread that watches the doorbells of a communicator's operators.

use super::job::CopyJob;
use super::poll_policy::{GPU_POLICY, Pause, PollPolicy, SIMULATED_POLICY};
use super::streams::CopyStreams;
use crate::driver::{self, Event};
use crate::error::{Error, with_causes};
use cudarc::driver::CudaContext;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time for which the thread sleeps between two checks while no operator uses copies.
const SLEEP_UNUSED: Duration = Duration::from_secs(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct JobList {
    jobs: Mutex<Vec<Arc<CopyJob>>>,
    /// A counter that grows with every change of `jobs`.
    changes: AtomicU64,
    is_woken: AtomicBool,
    stop: AtomicBool,
}

/// The copy thread. Dropping this ends it.
pub(crate) struct CopyThread {
    shared: Arc<JobList>,
    streams: Arc<CopyStreams>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl CopyThread {
    pub fn start(
        ctx: &Arc<CudaContext>,
        (rank, world): (u32, u32),
        is_simulated: bool,
    ) -> Result<Self, Error> {
        let streams = Arc::new(CopyStreams::new(ctx, world)?);
        let shared = Arc::new(JobList {
            jobs: Mutex::default(),
            changes: AtomicU64::new(0),
            is_woken: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let (ctx, theirs, engine) = (ctx.clone(), shared.clone(), streams.clone());
        let thread = std::thread::Builder::new()
            .name(format!("mkernel-copies-{rank}"))
            .spawn(move || {
                // If this fails, the first copy fails with the same error and reports the error to its caller.
                let ready = driver::bind(&ctx).and_then(|()| driver::ignore_captures_of_others());
                if let Err(error) = ready {
                    tracing::warn!(
                        error = with_causes(&error),
                        "the copy thread cannot use the context"
                    );
                }
                let policy = if is_simulated {
                    SIMULATED_POLICY
                } else {
                    GPU_POLICY
                };
                serve(&theirs, &policy, |job| job.poll(&engine));
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

    pub fn add(&self, job: Arc<CopyJob>) {
        lock(&self.shared.jobs).push(job);
        self.shared.changes.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Removes `job`. Returns when the thread does not use it any more.
    pub fn remove(&self, job: &Arc<CopyJob>) {
        job.end();
        lock(&self.shared.jobs).retain(|other| !Arc::ptr_eq(other, job));
        self.shared.changes.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Records events after all copies so far.
    pub fn ends(&self, ctx: &Arc<CudaContext>) -> Result<Vec<Event>, Error> {
        self.streams.ends(ctx)
    }

    /// Wakes the thread, because a kernel will make a request soon.
    pub fn wake(&self) {
        self.shared.is_woken.store(true, Ordering::Release);
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
                tracing::error!("the copy thread panicked");
            }
        }
    }
}

/// Runs [`watch`], and runs it again after it panics: kernels whose waits were aborted wait for an answer.
fn serve(shared: &JobList, policy: &PollPolicy, poll: impl Fn(&CopyJob) -> bool) {
    while catch_unwind(AssertUnwindSafe(|| watch(shared, policy, &poll))).is_err() {
        for job in lock(&shared.jobs).iter() {
            job.fail(Error::Os {
                call: "enqueueing copies",
                source: Arc::new(std::io::Error::other("the copy thread has panicked")),
            });
        }
        std::thread::sleep(policy.sleep);
    }
}

/// Polls all jobs until `stop` is set. `poll` returns whether a request was handled.
fn watch(shared: &JobList, policy: &PollPolicy, poll: impl Fn(&CopyJob) -> bool) {
    let mut jobs: Vec<Arc<CopyJob>> = Vec::new();
    let mut changes = u64::MAX;
    let mut last_sign = Instant::now();
    while !shared.stop.load(Ordering::Acquire) {
        let now_changes = shared.changes.load(Ordering::Acquire);
        if changes != now_changes {
            changes = now_changes;
            jobs.clone_from(&lock(&shared.jobs));
        }
        let mut sign = shared.is_woken.swap(false, Ordering::AcqRel);
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
            match policy.pause(silence, is_expected, is_captured) {
                Pause::Spin => std::hint::spin_loop(),
                Pause::Yield => std::thread::yield_now(),
                Pause::Sleep => std::thread::park_timeout(policy.sleep),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_wakes_when_asked_and_ends_when_stopped() {
        let shared = Arc::new(JobList {
            jobs: Mutex::default(),
            changes: AtomicU64::new(0),
            is_woken: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || watch(&theirs, &GPU_POLICY, |_| false));
        let watcher = CopyThread {
            shared: shared.clone(),
            streams: Arc::default(),
            thread: Some(thread),
        };
        watcher.wake();
        let started = Instant::now();
        while shared.is_woken.load(Ordering::Acquire) {
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "the wake was not seen"
            );
            std::thread::yield_now();
        }
        drop(watcher);
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
