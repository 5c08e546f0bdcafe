//! [`Health`] records whether a communicator can still be used, and aborts the waits of its kernels if not.

mod losses;

use crate::bootstrap::{Collective, Stop};
use crate::error::{Error, OperatorCalls};
use crate::report::AbortCause;
pub(crate) use losses::{Ancestors, Lost};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// The number of comparisons after which the watchdog reports that a call of this rank has failed. Until then, other ranks may
/// find the cause on their own.
const COMPARISONS_PER_REPORT: u32 = 10;

/// An object that a communicator monitors, such as an operator. When the communicator fails, it aborts all monitored objects.
pub(crate) trait Monitored: Send + Sync {
    /// Returns the failure of the object's network, if there is one. This failure is the cause of all other failures.
    fn network_failure(&self) -> Option<Error>;

    /// Returns the error of a call that failed because it overlapped with another call, if there is one.
    fn overlap(&self) -> Option<Error>;

    /// Returns the reason why a call failed, or `None` if no call failed.
    fn failure(&self) -> Option<Error>;

    /// Takes the error of a call whose operands had wrong values, if there is one.
    fn take_fault(&self) -> Option<Error>;

    /// Returns the number of calls that each rank has begun, or `None` if the numbers cannot be read.
    fn calls(&self) -> Option<OperatorCalls>;

    /// Ends all waits of the object's kernels. Their reports name the rank that is lost or has failed.
    fn abort(&self, cause: AbortCause);
}

/// The first failure of a communicator.
struct FirstFailure {
    cause: Arc<Error>,
    /// Whether a call has returned the cause to its caller.
    is_returned: bool,
}

/// The state of a communicator that it shares with its operators and its watchdog.
pub(crate) struct Health {
    rank: u32,
    ranks: Mutex<Collective>,
    /// The ranks that are known to have left.
    left: Mutex<BTreeSet<u32>>,
    /// The handle that aborts a running step. A running step holds the lock of `ranks`.
    stop: Stop,
    operators: Mutex<Vec<Weak<dyn Monitored>>>,
    first_failure: Mutex<Option<FirstFailure>>,
    /// Whether a call of this rank has failed, or the rank has aborted its calls.
    pub has_failed: Arc<AtomicBool>,
    pub lost: Lost,
    /// The rank in the job of each rank.
    job_ranks: Vec<u32>,
    ancestors: Ancestors,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Health {
    pub fn new(ranks: Collective, job_ranks: &[u32], ancestors: Ancestors) -> Self {
        Self {
            job_ranks: job_ranks.to_vec(),
            ancestors,
            rank: ranks.rank(),
            left: Mutex::default(),
            stop: ranks.stop(),
            ranks: Mutex::new(ranks),
            operators: Mutex::default(),
            first_failure: Mutex::default(),
            has_failed: Arc::default(),
            lost: Lost::default(),
        }
    }

    /// Returns the ancestors of groups that are split from this communicator.
    pub fn for_groups(&self) -> Ancestors {
        self.ancestors.with(&self.lost, &self.job_ranks)
    }

    /// Locks the connections for a call of the program. A caller that needs a usable communicator must check its state after
    /// this call, not before: the caller then sees at least one of the two effects of a concurrent [`abort`](Self::abort).
    pub fn ranks(&self) -> MutexGuard<'_, Collective> {
        let mut ranks = lock(&self.ranks);
        ranks.begin();
        // The watchdog cannot report while this rank waits for other ranks in a step.
        if self.has_failed_itself() {
            ranks.report_failed();
        }
        ranks
    }

    /// Registers an operator, so that `abort` and `check` include it.
    pub fn register(&self, operator: Arc<dyn Monitored>) {
        let mut operators = lock(&self.operators);
        operators.retain(|known| known.strong_count() > 0);
        operators.push(Arc::downgrade(&operator));
    }

    pub fn live(&self) -> Vec<Arc<dyn Monitored>> {
        lock(&self.operators)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Returns an error if the communicator has failed. If no call has returned the cause yet, the error is the cause, so the
    /// first error that a caller gets is always the cause. Later errors are [`Error::Aborted`], whose text includes the cause.
    pub fn ensure_usable(&self) -> Result<(), Error> {
        if !self.has_failed() {
            return Ok(());
        }
        let mut first = lock(&self.first_failure);
        let Some(first) = first.as_mut() else {
            return Ok(());
        };
        let was_returned = std::mem::replace(&mut first.is_returned, true);
        Err(match &*first.cause {
            Error::Aborted { .. } => (*first.cause).clone(),
            _ if !was_returned => (*first.cause).clone(),
            _ => Error::Aborted {
                cause: Some(first.cause.clone()),
            },
        })
    }

    /// Returns the cause as an error if the communicator has failed.
    pub fn check(&self) -> Result<(), Error> {
        match lock(&self.first_failure).as_mut() {
            Some(first) => {
                first.is_returned = true;
                Err((*first.cause).clone())
            }
            None => Ok(()),
        }
    }

    /// Marks the communicator as failed and ends the waits of all its kernels. Only the first cause is recorded.
    pub fn fail(&self, error: Error) {
        self.record(error);
        self.abort_kernels(AbortCause::Host);
    }

    /// Ends the waits of all kernels. Their reports name the rank that is lost or has failed.
    pub fn abort_kernels(&self, cause: AbortCause) {
        self.live()
            .iter()
            .for_each(|operator| operator.abort(cause));
    }

    /// Marks the communicator as failed when the program aborts, and ends all waits as [`fail`](Self::fail) does. This also
    /// ends the running collective step.
    pub fn abort(&self) {
        self.fail(Error::Aborted { cause: None });
        self.stop.set();
    }

    fn record(&self, error: Error) {
        lock(&self.first_failure).get_or_insert_with(|| FirstFailure {
            cause: Arc::new(error),
            is_returned: false,
        });
        self.has_failed.store(true, Ordering::Release);
    }

    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns the cause of a failed wait: a rank that has left before making a call that this rank has begun. If there is no such
    /// rank, adds the calls that the ranks have begun to the error of the wait.
    pub fn explain(&self, mut error: Error) -> Error {
        if !matches!(
            error,
            Error::Timeout { .. } | Error::RankLost { .. } | Error::Fabric(_)
        ) {
            return error;
        }
        let operators = self.live();
        let calls: Vec<_> = operators
            .iter()
            .filter_map(|operator| operator.calls())
            .collect();
        // If a rank is lost, other ranks may have left because of the loss.
        let lost = match &error {
            Error::RankLost { rank, .. } => Some(*rank),
            Error::Timeout { lost, .. } => *lost,
            _ => None,
        };
        if let Some(left) = self.left_without_call(&calls, lost) {
            return left;
        }
        if let Error::Timeout { calls: found, .. } = &mut error {
            let mut different: Vec<_> = calls.into_iter().filter(OperatorCalls::differ).collect();
            different.sort_by_key(|calls| calls.operator.number());
            *found = Arc::new(different);
        }
        error
    }

    /// Returns the error if a rank has left before making a call that this rank has begun. If `lost` is a rank, only that rank is
    /// checked. A rank reports its failure before it leaves, and the reported failure is then the cause.
    fn left_without_call(&self, calls: &[OperatorCalls], lost: Option<u32>) -> Option<Error> {
        if self.has_heard_of_failure() {
            return None;
        }
        let left = lock(&self.left);
        let missing = |calls: &OperatorCalls, rank: u32| {
            let (own, theirs) = (calls.of(self.rank)?, calls.of(rank)?);
            // The counts wrap around at 2^32.
            (own.wrapping_sub(theirs) as i32 > 0).then(|| Error::LeftWithoutCall {
                rank,
                operator: calls.operator.clone(),
                call: theirs.wrapping_add(1),
            })
        };
        let mut by_number: Vec<_> = calls.iter().collect();
        by_number.sort_by_key(|calls| calls.operator.number());
        let of_rank = |rank: &u32| by_number.iter().find_map(|calls| missing(calls, *rank));
        left.iter()
            .filter(|rank| lost.is_none_or(|lost| lost == **rank))
            .find_map(of_rank)
    }

    /// Returns the connections to the other ranks, unless a thread is in a step.
    fn connections(&self) -> Option<MutexGuard<'_, Collective>> {
        match self.ranks.try_lock() {
            Ok(ranks) => Some(ranks),
            Err(TryLockError::Poisoned(ranks)) => Some(ranks.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Reports whether this rank's communicator has failed, then tells the other ranks that this rank leaves. If operators
    /// exist, the rank leaves when they are dropped.
    pub fn leave(&self) {
        let mut ranks = self.ranks();
        if self.has_failed() {
            ranks.report_failed();
        }
        if self.live().is_empty() {
            ranks.leave();
        }
    }

    /// Returns one more than `count` if this rank has failed, and 0 otherwise. Reports the failure to the other ranks when
    /// `count` has reached [`COMPARISONS_PER_REPORT`]. If the rank is in a step at that time, the report follows the step.
    pub fn count_failure(&self, count: u32) -> u32 {
        if !self.has_failed_itself() {
            return 0;
        }
        if count >= COMPARISONS_PER_REPORT
            && let Some(mut ranks) = self.connections()
        {
            ranks.report_failed();
        }
        count.saturating_add(1)
    }

    /// Records that `rank` has left, and ends the waits of this rank.
    pub fn record_left(&self, rank: u32) {
        lock(&self.left).insert(rank);
        self.abort_kernels(AbortCause::Lost(rank));
    }

    fn look_for_left(&self, ranks: &mut Collective) {
        lock(&self.left).extend(ranks.left());
    }

    /// Looks for ranks that have left, and returns whether another rank has reported a failure. If a thread is in a step, that
    /// thread holds the connections, and only ranks that left earlier are known.
    fn has_heard_of_failure(&self) -> bool {
        self.connections().is_some_and(|mut ranks| {
            self.look_for_left(&mut ranks);
            ranks.failed().is_some_and(|rank| rank != self.rank)
        })
    }

    /// Ends the waits of this rank if another rank has left before making a call that this rank has begun.
    pub fn compare_calls(&self) {
        if self.has_failed() || lock(&self.left).is_empty() {
            return;
        }
        let live = self.live();
        let calls: Vec<_> = live
            .iter()
            .filter_map(|operator| operator.calls())
            .collect();
        let Some(error) = self.left_without_call(&calls, None) else {
            return;
        };
        let cause = match &error {
            Error::LeftWithoutCall { rank, .. } => AbortCause::Lost(*rank),
            _ => AbortCause::Host,
        };
        self.record(error);
        self.abort_kernels(cause);
    }

    /// Returns the failure of an operator, if there is one. A call that follows an abandoned call of this rank fails as well,
    /// so the failure that is nearest to its cause comes first.
    pub fn failure(&self) -> Option<Error> {
        let found = || {
            let live = self.live();
            let failures = live.iter().filter_map(|operator| operator.failure());
            failures.min_by_key(|error| distance(error, self.rank))
        };
        // The kernel of the cause may have written its report after the page was read.
        found().and_then(|error| match distance(&error, self.rank) {
            0 => Some(error),
            _ => found(),
        })
    }

    /// Returns whether this rank has failed, and the cause is not on another rank.
    fn has_failed_itself(&self) -> bool {
        let recorded = lock(&self.first_failure)
            .as_ref()
            .map(|first| first.cause.clone());
        let cause = recorded.or_else(|| self.failure().map(Arc::new));
        cause.is_some_and(|error| distance(&error, self.rank) == 0)
    }

    /// Takes the loss of a rank of an ancestor: the rank belongs to this communicator too, or is the cause of its failure.
    fn look_at_ancestors(&self) {
        let (Some(job_rank), None) = (self.ancestors.lost(), self.lost.get()) else {
            return;
        };
        let own = self.job_ranks.iter().position(|rank| *rank == job_rank);
        if let Some(own) = own {
            let _ = self.lost.set(own as u32);
        } else if let Some(is_thread) = self.connections().map(|ranks| ranks.are_threads()) {
            let rank = job_rank;
            let cause = Some(Arc::new(Error::RankLost { rank, is_thread }));
            self.fail(Error::Aborted { cause });
        }
    }

    /// Checks whether another rank is lost or has failed. If a rank is lost, reports the loss to all other ranks and returns
    /// true.
    pub fn poll(&self) -> bool {
        self.look_at_ancestors();
        // A rank that is in a step detects the loss in that step.
        let Some(mut ranks) = self.connections() else {
            return false;
        };
        self.look_for_left(&mut ranks);
        if let Some(rank) = ranks.lost() {
            let _ = self.lost.set(rank);
        }
        let Some(&rank) = self.lost.get() else {
            let failed = ranks.failed().filter(|rank| *rank != self.rank);
            drop(ranks);
            // This is repeated in every check, for operators that were registered since the last check.
            failed
                .iter()
                .for_each(|rank| self.abort_kernels(AbortCause::Failed(*rank)));
            return false;
        };
        ranks.report_lost(rank);
        let is_thread = ranks.are_threads();
        drop(ranks);
        let live = self.live();
        // The failure of this rank's network is more specific: this rank may be the lost rank.
        let network = live.iter().find_map(|operator| operator.network_failure());
        self.record(self.explain(network.unwrap_or(Error::RankLost { rank, is_thread })));
        self.abort_kernels(AbortCause::Lost(rank));
        true
    }
}

/// Returns the distance of a failure from its cause: 0 if the failure is a cause, 1 if the cause is on another rank, and 2 if
/// the call failed because this rank had abandoned an earlier call.
fn distance(error: &Error, rank: u32) -> u8 {
    match error {
        Error::Timeout {
            aborted_by: Some(by),
            ..
        } => 1 + u8::from(*by == rank),
        Error::Timeout { lost: Some(_), .. }
        | Error::RankLost { .. }
        | Error::LeftWithoutCall { .. } => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
