//! Calls that different plans compute with equal bits.

use super::AttentionJob;
use crate::jobs::{Backend, CALLS, Results};

impl AttentionJob {
    /// Returns the jobs that make this job's calls with lengths at run time, and, for a batch of one, with packed
    /// sequences. The calls of packed sequences are all calls except the first.
    pub fn of_other_plans(&self) -> Vec<Self> {
        let seq = self.shape().seq;
        let mut jobs = vec![self.clone().with_rows(&[seq; CALLS as usize])];
        if self.shape().batch == 1 && self.nodes == 1 && self.config.tuning.kv_slots.is_none() {
            jobs.push(
                self.clone()
                    .with_sequences(&[&[seq][..]; CALLS as usize - 1]),
            );
        }
        jobs
    }

    /// Runs the job, and its calls with other plans. All plans must have equal results, bit by bit.
    ///
    /// # Errors
    /// A call fails, a result is wrong, or the plans differ.
    pub fn run_all_plans(&self, backend: Backend) -> Result<(), String> {
        let expected = comparable(self.run_on(backend)?);
        for other in self.of_other_plans() {
            let skipped = usize::from(other.config.packed);
            let found = comparable(other.run_on(backend)?);
            let is_equal = expected
                .iter()
                .zip(&found)
                .all(|(expected, found)| expected[skipped..] == found[..]);
            if !is_equal {
                return Err(format!("other bits with {:?}", other.kernel()));
            }
        }
        Ok(())
    }
}

/// Makes all NaN equal, since their bits mean nothing.
fn comparable(mut results: Results) -> Results {
    for bits in results.iter_mut().flatten().flatten() {
        if f32::from_bits(*bits).is_nan() {
            *bits = f32::NAN.to_bits();
        }
    }
    results
}
