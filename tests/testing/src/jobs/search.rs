//! The search for each mutant with the kernels that reach it.

use super::forked::{self, FORK, Report};
use super::{SimulatedJob, for_each_in_parallel};
use crate::mutants::finders::Finders;
use crate::mutants::{Mutant, PLANT, Switch, all};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The seconds of real time after which a run counts as endless.
const RUN_LIMIT: u32 = 30;
/// The most runs of a process. A forked process lacks the threads of its parent, so memory that the driver still uses
/// is never freed.
const RUNS: usize = 6;
/// The exit code of a process that has found a mutant.
const FOUND: u8 = 0;
/// The exit code of a process that has not found a mutant.
const NOT_FOUND: u8 = 1;

/// A job whose kernel has all mutants.
pub struct Target {
    name: String,
    job: Box<dyn SimulatedJob + Send + Sync>,
    switch: &'static Switch,
}

impl Target {
    /// Plants all mutants in the kernel of a job.
    pub fn new<J: SimulatedJob + Send + Sync + 'static>(name: String, mut job: J) -> Self {
        let switch = Switch::leak();
        let address = format!("{:#x}", std::ptr::from_ref(switch) as usize);
        job.edit(vec![(PLANT.into(), address)]);
        let job = Box::new(job);
        Self { name, job, switch }
    }

    /// Returns the name of the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the job with a mutant, or without a mutant, and returns the failure.
    fn run(&self, mutant: u32, seed: u64) -> Option<String> {
        self.switch.activate(mutant);
        self.job.run(seed).err()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The outcome of the search for a mutant.
pub struct Outcome {
    /// The mutant.
    pub mutant: Mutant,
    /// The kernel, the seed and the failure, if the mutant was found.
    pub found: Option<String>,
    /// The names of the kernels that reach the mutant.
    pub kernels: Vec<String>,
    /// The time of all runs.
    pub time: Duration,
}

/// The kernels that reach each mutant, in the order in which they are tried.
pub type Reach<'t> = BTreeMap<u32, Vec<(Duration, &'t Target)>>;

/// Runs all jobs without an active mutant. The kernels of `finders` come first, then the other kernels from the fastest on.
///
/// # Panics
/// A job fails. The message has the failures of all jobs.
pub fn reach<'t>(targets: &[&'t Target], seeds: u64, finders: &Finders) -> Reach<'t> {
    let (reach, failures) = (Mutex::new(Reach::new()), Mutex::new(Vec::new()));
    for_each_in_parallel(targets, |target| {
        for seed in 0..seeds {
            let started = Instant::now();
            if let Some(failure) = target.run(0, seed) {
                let mut failures = locked(&failures);
                failures.push(format!("{}, seed {seed}: {failure}", target.name));
                return;
            }
            if seed + 1 < seeds {
                continue;
            }
            println!("{}: {:?}", target.name, started.elapsed());
            for number in target.switch.reached() {
                let mut reach = locked(&reach);
                reach
                    .entry(number)
                    .or_default()
                    .push((started.elapsed(), target));
            }
        }
    });
    let failures = failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    let mut reach = reach.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mutants = all();
    for (number, targets) in &mut reach {
        targets.sort_by_key(|(time, _)| *time);
        take_families_in_turn(targets);
        let first = finders.kernels_of(&mutants[*number as usize - 1]);
        let place = |name: &str| first.iter().position(|kernel| kernel == name);
        targets.sort_by_key(|(_, target)| place(target.name()).unwrap_or(first.len()));
    }
    reach
}

/// Puts the first kernel of each family first, then the second kernel of each family, and so on, since kernels of a
/// family are alike.
fn take_families_in_turn(targets: &mut [(Duration, &Target)]) {
    let mut before = BTreeMap::new();
    targets.sort_by_cached_key(|(_, target)| {
        let family = target.name.split(':').next().unwrap_or_default();
        let place = before.entry(family.to_owned()).or_insert(0);
        *place += 1;
        *place
    });
}

/// Searches these mutants on all cores, each mutant for at most `limit` in a process of its own.
///
/// # Panics
/// A process panics.
pub fn search(reach: &Reach<'_>, numbers: &[u32], limit: Duration) -> Vec<Outcome> {
    let mutants = all();
    let outcomes = Mutex::new(Vec::new());
    for_each_in_parallel(numbers, |number| {
        let targets = reach.get(number).map_or(&[][..], Vec::as_slice);
        let started = Instant::now();
        let found = find(targets, *number, limit);
        let _lock = locked(&FORK);
        let outcome = Outcome {
            mutant: mutants[*number as usize - 1].clone(),
            found,
            kernels: targets
                .iter()
                .map(|(_, target)| target.name.clone())
                .collect(),
            time: started.elapsed(),
        };
        outcome.print();
        locked(&outcomes).push(outcome);
    });
    outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Searches a mutant. A mutant that ends the process, or whose run does not end, is found.
fn find(targets: &[(Duration, &Target)], number: u32, limit: Duration) -> Option<String> {
    let started = Instant::now();
    // Calls overlap with some seeds only, so kernels have different seeds.
    let mut runs = (0..).zip(targets.iter().map(|(_, target)| *target).cycle());
    while !targets.is_empty() && started.elapsed() < limit {
        let batch: Vec<_> = runs.by_ref().take(RUNS).collect();
        let (text, status) = forked::run(|report| find_here(&batch, number, report));
        let last = text.lines().next_back().unwrap_or_default();
        match (status.code().map(u8::try_from), status.signal()) {
            (Some(Ok(FOUND)), _) => return Some(last.to_owned()),
            (Some(Ok(NOT_FOUND)), _) => {}
            (_, Some(libc::SIGALRM)) => return Some(format!("{last}the run does not end")),
            (_, Some(signal)) => return Some(format!("{last}signal {signal} ends the process")),
            _ => panic!("mutant {number}: {last}{status}"),
        }
    }
    None
}

fn find_here(runs: &[(u64, &Target)], number: u32, report: &mut Report) -> u8 {
    for (seed, target) in runs {
        report.limit(RUN_LIMIT);
        report.say(&format!("\n{}, seed {seed}: ", target.name));
        if let Some(failure) = target.run(number, *seed) {
            // Such a run does not prove that the mutant was found.
            assert!(!failure.contains("cannot be used"), "{failure}");
            let mut lines = failure.lines();
            let line = lines.find(|line| !line.contains("simulator found"));
            report.say(line.unwrap_or_default());
            return FOUND;
        }
    }
    NOT_FOUND
}

impl Outcome {
    /// Returns the mutant, and the kernel that has found it.
    pub fn finder(&self) -> Option<(&Mutant, &str)> {
        let (kernel, _) = self.found.as_ref()?.split_once(", seed ")?;
        Some((&self.mutant, kernel))
    }

    fn print(&self) {
        let Self { mutant, time, .. } = self;
        let how = match &self.found {
            None => format!("NOT FOUND in {:?}", self.kernels),
            Some(found) => found.clone(),
        };
        println!(
            "{mutant} | line {} | {} ms | {how}",
            mutant.line,
            time.as_millis()
        );
    }
}
