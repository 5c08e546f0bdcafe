//! Many jobs, over all cores.

use super::simulated::{AGES, Results, Simulated};
use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs `body` for each of `items`, over all cores.
pub fn in_parallel<T: Sync>(items: &[T], body: impl Fn(&T) + Sync) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(8);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    body(item);
                }
            });
        }
    });
}

/// What can be as old as if it had made many calls.
pub trait Ages: Simulated + Clone {
    /// The same, that old after [`CALLS_BEFORE`] calls.
    fn at_age(self, calls: u32) -> Self;
}

/// Each job, by name, is right when the count of its calls passes 2^31 and 2^32, and has the same bits both times.
pub fn all_are_right_when_old<J: Ages + Sync>(jobs: &[(impl AsRef<str> + Sync, J)]) {
    none_fails(jobs, |(name, job)| {
        let name = name.as_ref();
        let mut first = None;
        for (seed, age) in (0..).zip(AGES) {
            let results = job.clone().at_age(age).run(seed);
            let results = results.map_err(|failure| format!("{name}, {age} calls: {failure}"))?;
            if *first.get_or_insert_with(|| results.clone()) != results {
                return Err(format!("{name}, {age} calls: other bits than before"));
            }
        }
        Ok(())
    });
}

/// Each job, by name, is right with all seeds below `seeds`.
pub fn all_are_right<J: Simulated + Sync>(jobs: &[(impl AsRef<str> + Sync, J)], seeds: u64) {
    none_fails(jobs, |(name, job)| {
        always_right(name.as_ref(), job, 0..seeds)
    });
}

/// Does `body` for each of `items`, over all cores; then panics with all that failed.
pub fn none_fails<T: Sync>(items: &[T], body: impl Fn(&T) -> Result<(), String> + Sync) {
    let failures = Mutex::new(Vec::new());
    in_parallel(items, |item| {
        if let Err(failure) = body(item) {
            failures.lock().expect("no panic").push(failure);
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Runs `job` with each of `seeds`. Every run must be right, and all must give the same bits. An error names its seed.
pub fn always_right(name: &str, job: &impl Simulated, seeds: Range<u64>) -> Result<(), String> {
    let first: Mutex<Option<Results>> = Mutex::default();
    for seed in seeds {
        let results = job
            .run(seed)
            .map_err(|failure| format!("{name}, seed {seed}: {failure}"))?;
        let mut first = first.lock().map_err(|_| "a run panicked")?;
        if first.get_or_insert_with(|| results.clone()) != &results {
            return Err(format!("{name}, seed {seed}: other bits than before"));
        }
    }
    Ok(())
}
