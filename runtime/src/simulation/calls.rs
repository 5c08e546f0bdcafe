//! [`CallTable`]: the calls that the ranks of a simulated job have begun.

use mkernel_sim::LaunchCount;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The numbers of calls of one operator that the ranks have begun, including replays of graphs. A rank's entry outlives the
/// rank.
pub(crate) struct OperatorLaunches {
    /// The counts by rank.
    counts: Vec<OnceLock<Arc<LaunchCount>>>,
    /// The rank in the job of each rank.
    job_ranks: Vec<u32>,
}

/// An operator of a job: the [splits](crate::cluster::Cluster::splits) that led to its communicator, and its number.
pub(crate) type OperatorKey = (Vec<u32>, u32);

impl OperatorLaunches {
    /// Returns the number of calls that each rank has begun. Calls that did not take place because an earlier call had failed
    /// are not counted. The number of a rank in another process is unknown and returned as 0.
    pub fn begun(&self) -> Vec<u64> {
        self.counts(LaunchCount::before_abort)
    }

    fn counts(&self, of: impl Fn(&LaunchCount) -> u64) -> Vec<u64> {
        let counts = self.counts.iter().map(OnceLock::get);
        counts
            .map(|count| count.map_or(0, |count| of(count)))
            .collect()
    }

    /// Returns the ranks in the job that have a running call.
    fn running(&self) -> impl Iterator<Item = u32> {
        let all = self.job_ranks.iter().zip(&self.counts);
        let is_running = |count: &OnceLock<Arc<LaunchCount>>| {
            count.get().is_some_and(|count| count.is_running())
        };
        all.filter_map(move |(rank, count)| is_running(count).then_some(*rank))
    }

    /// Returns whether all ranks have begun every call that the rank with this rank in the job has begun.
    fn are_made_by_all(&self, job_rank: u32) -> bool {
        let begun = self.counts(LaunchCount::begun);
        let own = self.job_ranks.iter().position(|rank| *rank == job_rank);
        own.is_none_or(|own| begun.iter().all(|theirs| *theirs >= begun[own]))
    }
}

/// The operators of a job and of its groups that exist on any rank.
#[derive(Default)]
pub(crate) struct CallTable(Mutex<HashMap<OperatorKey, Weak<OperatorLaunches>>>);

impl CallTable {
    /// Adds the operator of one rank. Returns the calls of all ranks.
    pub fn add(
        &self,
        operator: OperatorKey,
        (rank, job_ranks): (u32, &[u32]),
        launches: Arc<LaunchCount>,
    ) -> Arc<OperatorLaunches> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, operator| operator.strong_count() > 0);
        let of_all = known.get(&operator).and_then(Weak::upgrade);
        let of_all = of_all.unwrap_or_else(|| {
            Arc::new(OperatorLaunches {
                counts: job_ranks.iter().map(|_| OnceLock::new()).collect(),
                job_ranks: job_ranks.to_vec(),
            })
        });
        known.insert(operator, Arc::downgrade(&of_all));
        // A rank adds each of its operators once.
        let _ = of_all.counts[rank as usize].set(launches);
        of_all
    }

    /// Returns whether calls are running that cannot end before some rank makes a call that it has not made yet. In that
    /// case the program has a mistake. If all ranks have begun every call of a rank with a running call, the mistake is in a
    /// kernel.
    pub fn lacks_call(&self) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let operators: Vec<_> = known.values().filter_map(Weak::upgrade).collect();
        drop(known);
        let of_all = operators.iter();
        let mut running = of_all.flat_map(|launches| launches.running()).peekable();
        let made_by_all = |rank| operators.iter().all(|calls| calls.are_made_by_all(rank));
        running.peek().is_some() && !running.any(made_by_all)
    }
}
