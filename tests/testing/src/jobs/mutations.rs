//! Mutations: mistakes that are planted in the text of a kernel. The simulator or the comparison of results must find
//! each mutation.
//!
//! A test runs a sample of its mutations, which changes with the headers of kernels. With `MKERNEL_MUTATIONS=all` in the
//! environment, it runs all.

use super::GemmJob;
use super::runs::none_fails;
use super::simulated::SimulatedJob;
use mkernel_compile::headers;
use mkernel_spec::Backend;
use std::hash::{DefaultHasher, Hash, Hasher};

/// One of this number of mutations is in the sample.
const SAMPLE_STEP: u64 = 5;

/// A mutation: its name, the job whose kernel it changes, and the edits of the kernel's text, as [`SimulatedJob::edit`]
/// takes them.
pub type Mutation<J = GemmJob> = (
    &'static str,
    fn() -> J,
    &'static [(&'static str, &'static str)],
);

/// Returns the job with a mutated kernel. The edits are in the form of [`SimulatedJob::edit`].
pub fn mutated<J: SimulatedJob>(mut job: J, edits: &[(&str, &str)]) -> J {
    let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
    job.edit(edits.iter().map(owned).collect());
    job
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

/// Runs the mutations of the sample with seeds below `seeds` until a run fails.
///
/// # Panics
/// A mutation is not found with any of the seeds, or its kernel does not compile.
pub fn all_mutations_are_found<J: SimulatedJob + Sync>(mutations: &[Mutation<J>], seeds: u64) {
    let mutate = |(name, job, edits): &Mutation<J>| (*name, mutated(job(), edits));
    all_are_found(&mutations.iter().map(mutate).collect::<Vec<_>>(), seeds);
}

/// Returns the mutations to run: a sample of at least one mutation, or all mutations if `MKERNEL_MUTATIONS` is `all`.
fn sample<'a, J>(mutations: &'a [(&'a str, J)]) -> Vec<&'a (&'a str, J)> {
    if std::env::var_os("MKERNEL_MUTATIONS").is_some_and(|which| which == "all") {
        return mutations.iter().collect();
    }
    let place = |(name, _): &(&str, J)| {
        let mut hasher = DefaultHasher::new();
        (name, headers(Backend::Nvrtc)).hash(&mut hasher);
        hasher.finish()
    };
    let mut all: Vec<_> = mutations.iter().map(|m| (place(m), m)).collect();
    all.sort_by_key(|(place, _)| *place);
    let count = (all.len() as u64).div_ceil(SAMPLE_STEP) as usize;
    all.into_iter().take(count).map(|(_, m)| m).collect()
}

/// Runs the mutated jobs of the sample with seeds below `seeds` until a run fails.
///
/// # Panics
/// A mutation is not found with any of the seeds, or its kernel does not compile.
pub fn all_are_found<J: SimulatedJob + Sync>(mutations: &[(&str, J)], seeds: u64) {
    none_fails(&sample(mutations), |(name, job)| {
        let started = std::time::Instant::now();
        let found = (0..seeds).find_map(|seed| Some((seed, job.run(seed).err()?)));
        let (seed, failure) = found.ok_or(format!("{name}: not found"))?;
        let mut lines = failure.lines();
        let line = lines.find(|line| !line.contains("simulator found"));
        println!(
            "{name}: seed {seed}, {:?}: {}",
            started.elapsed(),
            line.unwrap_or("")
        );
        // A kernel that does not compile, or an edit whose text is missing, shows nothing.
        let invalid = ["does not compile", "a rank panicked"];
        match invalid.iter().any(|text| failure.contains(text)) {
            true => Err(format!("{name}: {failure}")),
            false => Ok(()),
        }
    });
}
