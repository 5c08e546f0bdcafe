//! Repeated runs of one job.

use mkernel_testing::jobs::Results;
use std::fmt::Display;

/// Runs a job several times. `name` names the job in a panic.
///
/// # Panics
/// A run fails, or its results differ in a bit from the results of the first run.
pub fn run_times(times: u32, name: impl Display, run: impl Fn() -> Result<Results, String>) {
    let mut first = None;
    for _ in 0..times {
        let found = run().unwrap_or_else(|failure| panic!("{name}: {failure}"));
        let is_equal = *first.get_or_insert_with(|| found.clone()) == found;
        assert!(is_equal, "{name}: other bits than before");
    }
}
