//! [`StepWait`]: the wait of a rank for the other ranks in a step, and the events that end the wait early.

use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Ends the waits of a rank for other ranks, from any thread: the running wait, and later waits of one call of the program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// The number of calls of `set`.
    count: Arc<AtomicU64>,
    /// The value of `count` when the call of the program began.
    before: u64,
}

impl Stop {
    pub fn set(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub fn is_set(&self) -> bool {
        self.count.load(Ordering::Acquire) != self.before
    }

    /// Begins another call of the program.
    pub fn renew(&mut self) {
        self.before = self.count.load(Ordering::Acquire);
    }
}

/// Returns whether work is running during which the deadlines of steps on the host are paused.
pub(crate) type IsBusy = Arc<dyn Fn() -> bool + Send + Sync>;

/// The reason why a wait ended although not all ranks have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Stopped,
    Late,
}

/// The wait of a rank in one step. The waiting thread must call [`look`](Self::look) repeatedly, since time is counted
/// from one call to the next.
#[derive(Clone)]
pub(crate) struct StepWait {
    pub step: &'static str,
    pub timeout: Duration,
    pub stop: Stop,
    is_busy: Option<IsBusy>,
    /// The time that has been counted so far.
    spent: Duration,
    looked: Instant,
    has_warned: bool,
}

impl StepWait {
    pub fn new(step: &'static str, timeout: Duration) -> Self {
        Self {
            step,
            timeout,
            stop: Stop::default(),
            is_busy: None,
            spent: Duration::ZERO,
            looked: Instant::now(),
            has_warned: false,
        }
    }

    /// Lets `stop` end the wait, and pauses its time while `is_busy` returns true.
    pub fn with(self, stop: Stop, is_busy: Option<IsBusy>) -> Self {
        Self {
            stop,
            is_busy,
            ..self
        }
    }

    /// Returns a wait in another step, which begins now and has the length of this wait.
    pub fn again(&self, step: &'static str) -> Self {
        Self::new(step, self.timeout).with(self.stop.clone(), self.is_busy.clone())
    }

    /// Returns the reason why the wait is over: it was stopped, or the deadline plus `grace` has passed. `None` if it is not
    /// over.
    pub(super) fn look(&mut self, grace: Duration) -> Option<Ended> {
        let passed = self.looked.elapsed();
        self.looked += passed;
        if self.stop.is_set() {
            return Some(Ended::Stopped);
        }
        if !self.is_busy.as_ref().is_some_and(|is_busy| is_busy()) {
            self.spent += passed;
        }
        (self.spent >= self.timeout + grace).then_some(Ended::Late)
    }

    /// Logs once, long before the deadline, the ranks that are missing.
    pub(super) fn warn(&mut self, rank: u32, missing: &[u32]) {
        let long = (self.timeout / 60).max(Duration::from_secs(5));
        if self.spent >= long && !self.has_warned {
            self.has_warned = true;
            let step = self.step;
            tracing::warn!(
                rank,
                step,
                ?missing,
                "still waiting for other ranks; check that each has a thread or process of its own and makes the same calls"
            );
        }
    }

    /// Returns the error of a wait that ended, if no other rank must be informed.
    pub(super) fn error(&self, ended: Ended, missing: Vec<u32>) -> Error {
        match ended {
            Ended::Stopped => Error::Aborted { cause: None },
            Ended::Late => Error::RanksMissing {
                step: self.step,
                ranks: missing,
                waited: self.timeout,
                refused: Vec::new(),
            },
        }
    }
}

/// The reason that other ranks get if a rank was stopped.
pub(super) const STOPPED: &str = "Communicator::abort was called";

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    const LONG: Duration = Duration::from_secs(100);

    /// Makes the wait appear to have lasted longer.
    fn pass(wait: &mut StepWait, time: Duration) {
        wait.looked = wait.looked.checked_sub(time).expect("a time");
    }

    #[test]
    fn time_stands_still_while_ranks_are_busy() {
        let busy = Arc::new(AtomicBool::new(true));
        let seen = busy.clone();
        let is_busy: IsBusy = Arc::new(move || seen.load(Ordering::Relaxed));
        let mut wait = StepWait::new("step", LONG).with(Stop::default(), Some(is_busy));
        pass(&mut wait, 3 * LONG);
        assert_eq!(wait.look(Duration::ZERO), None);
        busy.store(false, Ordering::Relaxed);
        pass(&mut wait, LONG);
        assert_eq!(wait.look(LONG), None, "the grace period has not passed");
        assert_eq!(wait.look(Duration::ZERO), Some(Ended::Late));
        assert_eq!(wait.again("next").look(Duration::ZERO), None);
    }

    #[test]
    fn a_long_wait_is_logged_once_with_the_missing_ranks() {
        let log = crate::bootstrap::tests::logged(|| {
            let mut wait = StepWait::new("step", Duration::from_secs(30));
            wait.warn(0, &[1, 3]);
            wait.spent = Duration::from_secs(5);
            wait.warn(0, &[1, 3]);
            wait.warn(0, &[3]);
        });
        assert_eq!(log.lines().count(), 1, "{log}");
        for part in ["WARN", "rank=0", "step=\"step\"", "missing=[1, 3]"] {
            assert!(log.contains(part), "{log}");
        }
    }

    #[test]
    fn a_stop_ends_the_waits_of_a_call() {
        let mut stop = Stop::default();
        let mut wait = StepWait::new("step", LONG).with(stop.clone(), None);
        assert_eq!(wait.look(LONG), None);
        stop.set();
        assert_eq!(wait.look(LONG), Some(Ended::Stopped));
        assert_eq!(wait.again("next").look(LONG), Some(Ended::Stopped));
        stop.renew();
        assert_eq!(wait.with(stop, None).look(LONG), None);
    }
}
