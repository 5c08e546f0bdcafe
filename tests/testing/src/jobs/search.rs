//! The search for each mutant with the kernels that reach it.

use super::permit::abandon_machine;
use super::{SimulatedJob, for_each_in_parallel};
use crate::mutants::{Mutant, PLANT, Switch, all};
use std::collections::BTreeMap;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// The time after which a run counts as stuck.
const TIME_LIMIT: Duration = Duration::from_secs(40);

/// A part of the error that says that too many runs are stuck for another one.
const NO_MACHINE: &str = "simulated GPUs cannot be used";

/// A job whose kernel has all mutants.
pub struct Target {
    name: String,
    plant: Box<dyn Fn() -> Planted + Send + Sync>,
    planted: Mutex<Planted>,
}

struct Planted {
    job: Arc<dyn SimulatedJob + Send + Sync>,
    switch: &'static Switch,
}

impl Target {
    /// Plants all mutants in the kernel of a job.
    pub fn new<J: SimulatedJob + Send + Sync + 'static>(name: String, make: fn() -> J) -> Self {
        let plant = move || {
            let (mut job, switch) = (make(), Switch::leak());
            let address = format!("{:#x}", std::ptr::from_ref(switch) as usize);
            job.edit(vec![(PLANT.into(), address)]);
            Planted {
                job: Arc::new(job),
                switch,
            }
        };
        Self {
            name,
            planted: Mutex::new(plant()),
            plant: Box::new(plant),
        }
    }

    /// Runs the job with a mutant, or with none, and returns the failure.
    fn run(&self, mutant: u32, seed: u64) -> Option<String> {
        let mut planted = locked(&self.planted);
        planted.switch.activate(mutant);
        let (send, outcome) = mpsc::channel();
        let job = Arc::clone(&planted.job);
        // A send fails only if nobody waits for the outcome any more.
        std::thread::spawn(move || drop(send.send(job.run(seed).err())));
        match outcome.recv_timeout(TIME_LIMIT) {
            Ok(Some(failure)) if failure.contains(NO_MACHINE) => panic!("{failure}"),
            Ok(failure) => failure,
            Err(RecvTimeoutError::Disconnected) => Some("the run panicked".into()),
            Err(RecvTimeoutError::Timeout) => {
                abandon_machine();
                *planted = (self.plant)();
                Some("the run does not end".into())
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the search for a mutant ended.
pub struct Outcome {
    /// The mutant.
    pub mutant: Mutant,
    /// The kernel, the seed and the failure, if the mutant was found.
    pub found: Option<(String, u64, String)>,
    /// The names of the kernels that reach the mutant.
    pub kernels: Vec<String>,
    /// The time of all runs.
    pub time: Duration,
}

/// The kernels that reach each mutant, from the fastest on.
pub type Reach<'t> = BTreeMap<u32, Vec<(Duration, &'t Target)>>;

/// Runs all jobs without an active mutant.
///
/// # Panics
/// A job fails. The message has the failures of all jobs.
pub fn reach(targets: &[Target], seeds: u64) -> Reach<'_> {
    let (reach, failures) = (Mutex::new(Reach::new()), Mutex::new(Vec::new()));
    let indices: Vec<usize> = (0..targets.len()).collect();
    for_each_in_parallel(&indices, |index| {
        let target = &targets[*index];
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
            for number in locked(&target.planted).switch.reached() {
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
    for targets in reach.values_mut() {
        targets.sort_by_key(|(time, _)| *time);
        take_families_in_turn(targets);
    }
    reach
}

/// Puts the first kernel of each family first, then the second one of each, and so on: kernels of a family are alike.
fn take_families_in_turn(targets: &mut [(Duration, &Target)]) {
    let mut before = BTreeMap::new();
    targets.sort_by_cached_key(|(_, target)| {
        let family = target.name.split(':').next().unwrap_or_default();
        let place = before.entry(family.to_owned()).or_insert(0);
        *place += 1;
        *place
    });
}

/// Searches these mutants for at most `limit` each, on all cores.
pub fn search(reach: &Reach<'_>, numbers: &[u32], limit: Duration) -> Vec<Outcome> {
    let mutants = all();
    let outcomes = Mutex::new(Vec::new());
    for_each_in_parallel(numbers, |number| {
        let targets = reach.get(number).map_or(&[][..], Vec::as_slice);
        let started = Instant::now();
        let outcome = Outcome {
            mutant: mutants[*number as usize - 1].clone(),
            found: find(targets, *number, limit),
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

fn find(
    targets: &[(Duration, &Target)],
    number: u32,
    limit: Duration,
) -> Option<(String, u64, String)> {
    let started = Instant::now();
    for seed in 0.. {
        for (_, target) in targets.iter() {
            if let Some(failure) = target.run(number, seed) {
                return Some((target.name.clone(), seed, failure));
            }
            if started.elapsed() > limit {
                return None;
            }
        }
        if targets.is_empty() {
            return None;
        }
    }
    None
}

impl Outcome {
    fn print(&self) {
        let how = match &self.found {
            None => format!("NOT FOUND in {:?}", self.kernels),
            Some((kernel, seed, failure)) => {
                let mut lines = failure.lines();
                let line = lines.find(|line| !line.contains("simulator found"));
                format!("{kernel}, seed {seed}: {}", line.unwrap_or(""))
            }
        };
        let Self { mutant, time, .. } = self;
        println!(
            "{mutant} | line {} | {} ms | {how}",
            mutant.line,
            time.as_millis()
        );
    }
}
