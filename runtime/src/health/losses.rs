//! [`Lost`]: the lost rank of a communicator, and [`Ancestors`]: the communicators from which a group of ranks was split.

use std::sync::{Arc, OnceLock};

/// The first rank that is known to be lost. Proxies and the watchdog set this value.
pub(crate) type Lost = Arc<OnceLock<u32>>;

/// The communicators from which a group of ranks was split. If one of these communicators loses a rank while it exists on this
/// rank, the group ends, even if the lost rank is not a member.
#[derive(Clone, Default)]
pub(crate) struct Ancestors {
    /// For each communicator, its lost rank, and the ranks in the job of all of its ranks.
    all: Vec<(Lost, Vec<u32>)>,
}

impl Ancestors {
    /// Returns the ancestors of a group that was split from a communicator with these ancestors.
    pub fn with(&self, lost: &Lost, job_ranks: &[u32]) -> Self {
        let parent = (lost.clone(), job_ranks.to_vec());
        Self {
            all: self.all.iter().cloned().chain([parent]).collect(),
        }
    }

    /// Returns the first rank that is known to be lost, by its rank in the job.
    pub fn lost(&self) -> Option<u32> {
        let mut lost = self.all.iter().filter_map(|(lost, job_ranks)| {
            let rank = *lost.get()? as usize;
            job_ranks.get(rank).copied()
        });
        lost.next()
    }
}
