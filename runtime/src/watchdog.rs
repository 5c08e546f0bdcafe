//! [`Watchdog`]: a thread that checks whether all ranks are connected, and whether a rank has failed, and the heartbeats of this
//! rank.

use crate::bootstrap::{Heart, Heartbeats, Owner};
use crate::health::Health;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The interval between two checks of the connections to the other ranks while this rank is in no collective step.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The number of checks of connections after which the watchdog compares the calls of this rank with the calls of ranks that
/// have left. The comparison reads memory of the GPU.
const POLLS_PER_COMPARISON: u32 = 10;

/// A thread that checks the connections to the other ranks until a rank is lost. The thread also ends waits for ranks that
/// have left or failed, and reports the failure of its own rank.
pub(crate) struct Watchdog {
    health: Arc<Health>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    heart: Option<Heart>,
    owner: Owner,
}

impl Watchdog {
    /// Starts the thread, and the thread that sends `heartbeats`. If the first cannot be started, kernels wait for a lost rank until their deadline.
    pub fn start(health: &Arc<Health>, heartbeats: Option<Heartbeats>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let watched = (health.clone(), is_over.clone());
        let body = move || {
            let (health, is_over) = watched;
            let (mut polls, mut failures) = (0_u32, 0_u32);
            while !is_over.load(Ordering::Acquire) && !health.poll() {
                if polls.is_multiple_of(POLLS_PER_COMPARISON) {
                    health.compare_calls();
                    failures = health.count_failure(failures);
                }
                polls = polls.wrapping_add(1);
                std::thread::park_timeout(POLL_INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name("mkernel-ranks".into());
        let thread = thread.spawn(body);
        if let Err(error) = &thread {
            tracing::warn!(%error, "the thread that monitors the other ranks cannot be started; the loss of a rank is detected at the deadline");
        }
        let heart = heartbeats.map(Heartbeats::start);
        if let Some(Err(error)) = &heart {
            tracing::warn!(%error, "the thread that sends heartbeats cannot be started; other ranks do not notice if this process stops");
        }
        Self {
            heart: heart.and_then(Result::ok),
            health: health.clone(),
            is_over,
            thread: thread.ok(),
            owner: Owner::this_process(),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            return;
        }
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        if let Some(heart) = self.heart.take() {
            heart.stop();
        }
        // This rank's proxies may have reported a loss in the meantime.
        self.health.poll();
    }
}
