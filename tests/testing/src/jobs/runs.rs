//! Runs of many jobs on all cores, with many seeds.

use super::shares::sixth_of_long;
use super::simulated::{Results, SimulatedJob, WRAPPING_CALL_COUNTS};
use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs `body` for each of `items`, on all cores, at most eight.
pub fn for_each_in_parallel<T: Sync>(items: &[T], body: impl Fn(&T) + Sync) {
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

/// A job whose operators can continue as if they had made many calls.
pub trait CallCount: SimulatedJob + Clone {
    /// Returns the job with a call count that is set to `calls` after its first calls.
    fn with_call_count(self, calls: u32) -> Self;

    /// Returns whether the calls are captured in a graph, within which the call count cannot be set.
    fn replays_a_graph(&self) -> bool;
}

/// Runs each job while its call count passes 2^31, and again while it passes 2^32.
///
/// # Panics
/// A run fails, or its results differ in a bit from the results of the first run. The message names the job.
pub fn all_are_right_when_counters_wrap<J: CallCount + Sync>(jobs: &[(impl AsRef<str> + Sync, J)]) {
    none_fails(jobs, |(name, job)| {
        let name = name.as_ref();
        let mut first = None;
        for (seed, calls) in (0..).zip(WRAPPING_CALL_COUNTS) {
            let results = job.clone().with_call_count(calls).run(seed);
            let results = results.map_err(|failure| format!("{name}, {calls} calls: {failure}"))?;
            if *first.get_or_insert_with(|| results.clone()) != results {
                return Err(format!("{name}, {calls} calls: other bits than before"));
            }
        }
        Ok(())
    });
}

/// Runs each job with all seeds below `seeds`.
///
/// # Panics
/// A run fails, or its results differ in a bit from the results of the first run. The message names the job and the
/// seed.
pub fn all_are_right<J: SimulatedJob + Sync>(jobs: &[(impl AsRef<str> + Sync, J)], seeds: u64) {
    none_fails(jobs, |(name, job)| {
        right_for_seeds(name.as_ref(), job, 0..seeds)
    });
}

/// Runs each job of a short list, and a sixth of the jobs of a [long list](sixth_of_long), once: as it is, or while its call count passes
/// 2^31 or 2^32. A job that replays a graph runs as it is. For other jobs, the sum of the bytes of the name decides, so that a job runs in different ways on two ranks and on four
/// ranks.
///
/// # Panics
/// A run fails. The message names the job.
pub fn all_are_right_now_or_after_many_calls<J: CallCount + Sync>(jobs: &[(String, J)]) {
    let [half, whole] = WRAPPING_CALL_COUNTS;
    none_fails(&sixth_of_long(jobs), |(name, job)| {
        let turn = name.bytes().map(u32::from).sum::<u32>() % 3;
        let result = match (job.replays_a_graph(), turn) {
            (true, _) | (_, 0) => job.run(0),
            (_, 1) => job.clone().with_call_count(half).run(1),
            _ => job.clone().with_call_count(whole).run(3),
        };
        let named = |failure| format!("{name}, way {turn}: {failure}");
        result.map(drop).map_err(named)
    });
}

/// Runs `body` for each of `items`, on all cores, at most eight.
///
/// # Panics
/// A call of `body` fails. The message has all failures.
pub fn none_fails<T: Sync>(items: &[T], body: impl Fn(&T) -> Result<(), String> + Sync) {
    let failures = Mutex::new(Vec::new());
    for_each_in_parallel(items, |item| {
        if let Err(failure) = body(item) {
            failures.lock().expect("no panic").push(failure);
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Returns the job whose name has this part.
///
/// # Panics
/// No job has such a name, or several jobs have one.
pub fn named<J>(jobs: Vec<(String, J)>, part: &str) -> J {
    let found = jobs.into_iter().filter(|(name, _)| name.contains(part));
    let (names, mut jobs): (Vec<_>, Vec<_>) = found.unzip();
    assert_eq!(
        names.len(),
        1,
        "jobs with {part:?} in their names: {names:?}"
    );
    jobs.remove(0)
}

/// Runs each job with seeds below `seeds` until a run fails.
///
/// # Panics
/// No run of a job fails, its kernel does not compile, or a rank panics, for example because an edit's text is missing.
pub fn all_fail<J: SimulatedJob + Sync>(jobs: &[(&str, J)], seeds: u64) {
    none_fails(jobs, |(name, job)| {
        let failure = (0..seeds).find_map(|seed| job.run(seed).err());
        println!("{name}: {failure:?}");
        // Such a failure does not prove that the mistake was found.
        let is_invalid = |failure: &String| {
            let invalid = ["does not compile", "a rank panicked"];
            invalid.iter().any(|text| failure.contains(text))
        };
        match failure {
            Some(failure) if !is_invalid(&failure) => Ok(()),
            other => Err(format!("{name} did not fail as it should: {other:?}")),
        }
    });
}

/// Runs `job` with each of `seeds`.
///
/// # Errors
/// A run fails, or its results differ in a bit from the results of the first run. The error names the seed.
pub fn right_for_seeds(
    name: &str,
    job: &impl SimulatedJob,
    seeds: Range<u64>,
) -> Result<(), String> {
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
