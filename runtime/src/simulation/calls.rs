//! [`CallTable`]: the calls that the ranks of a simulated job have begun.

use mkernel_sim::LaunchCount;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The numbers of calls of one operator that the ranks have begun, including replays of graphs. A rank's entry outlives the
/// rank.
pub(crate) struct OperatorLaunches(Vec<OnceLock<Arc<LaunchCount>>>);

impl OperatorLaunches {
    /// Returns the number of calls that each rank has begun. Calls that did not take place because an earlier call had failed
    /// are not counted. The number of a rank in another process is unknown and returned as 0.
    pub fn begun(&self) -> Vec<u64> {
        self.counts(LaunchCount::before_abort)
    }

    fn counts(&self, of: impl Fn(&LaunchCount) -> u64) -> Vec<u64> {
        let counts = self.0.iter().map(OnceLock::get);
        counts
            .map(|count| count.map_or(0, |count| of(count)))
            .collect()
    }

    fn runs(&self, rank: usize) -> bool {
        let count = self.0.get(rank).and_then(OnceLock::get);
        count.is_some_and(|count| count.is_running())
    }
}

/// The operators of a job that exist on any rank, by number.
#[derive(Default)]
pub(crate) struct CallTable(Mutex<HashMap<u32, Weak<OperatorLaunches>>>);

impl CallTable {
    /// Adds the operator of one rank. Returns the calls of all ranks.
    pub fn add(
        &self,
        operator: u32,
        (rank, world): (u32, u32),
        launches: Arc<LaunchCount>,
    ) -> Arc<OperatorLaunches> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, operator| operator.strong_count() > 0);
        let of_all = known.get(&operator).and_then(Weak::upgrade);
        let of_all = of_all.unwrap_or_else(|| {
            let of_ranks = (0..world).map(|_| OnceLock::new());
            Arc::new(OperatorLaunches(of_ranks.collect()))
        });
        known.insert(operator, Arc::downgrade(&of_all));
        // A rank adds each of its operators once.
        let _ = of_all.0[rank as usize].set(launches);
        of_all
    }

    /// Returns whether calls are running that cannot end before some rank makes a call that it has not made yet. This is a
    /// mistake of the program. If all ranks have begun every call of a rank with a running call, the mistake is in a kernel.
    pub fn lacks_call(&self) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let operators: Vec<_> = known.values().filter_map(Weak::upgrade).collect();
        drop(known);
        let begun: Vec<Vec<u64>> = operators
            .iter()
            .map(|launches| launches.counts(LaunchCount::begun))
            .collect();
        let ranks = begun.iter().map(Vec::len).max().unwrap_or(0);
        let runs = |rank: &usize| operators.iter().any(|launches| launches.runs(*rank));
        let made_by_all = |rank: usize| {
            let mut counts = begun.iter().filter_map(|all| Some((all.get(rank)?, all)));
            counts.all(|(own, all)| all.iter().all(|theirs| theirs >= own))
        };
        let mut running = (0..ranks).filter(runs).peekable();
        running.peek().is_some() && !running.any(made_by_all)
    }
}
