//! Generated mutants of kernels.

mod ag_gemm;
mod attention;
mod buckets;
mod cluster;
mod collectives;
mod epilogue;
mod experts;
mod nodes;
mod norms;
mod quantised;
mod reduce;
mod rows;
mod scales;
mod sequences;
mod swiglu;

use mkernel::spec::{BLayout, Dim, Epilogue, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel_testing::jobs::search::{Outcome, Reach, Target, reach, search};
use mkernel_testing::jobs::{GemmJob, SimulatedJob, draw};
use mkernel_testing::mutants::exceptions::{self, Exception};
use mkernel_testing::mutants::finders::Finders;
use mkernel_testing::mutants::{Mutant, Operator, all};
use std::time::Duration;

/// A kernel to mutate: its name, and a job in which its mutants have an effect.
type Kernel<J = GemmJob> = (&'static str, fn() -> J);

fn job(
    (op, epilogue, tuning): (GemmOp, Epilogue, Tuning),
    world: u32,
    shape: GemmShape,
    b_layout: BLayout,
    sms: u32,
) -> GemmJob {
    let config = GemmConfig {
        m: Dim::Static(shape.m),
        n: Dim::Static(shape.n),
        k: Dim::Static(shape.k),
        b_layout,
        epilogue,
        tuning,
        ..GemmConfig::new(op)
    };
    GemmJob::new(world, config, shape, sms)
}

fn targets<J: SimulatedJob + Send + Sync + 'static>(
    family: &str,
    kernels: &[Kernel<J>],
) -> Vec<Target> {
    let target = |(name, job): &Kernel<J>| Target::new(format!("{family}: {name}"), job());
    kernels.iter().map(target).collect()
}

fn all_targets() -> Vec<Target> {
    let families = [
        targets("ag_gemm", ag_gemm::KERNELS),
        targets("reduce", reduce::KERNELS),
        targets("epilogue", epilogue::KERNELS),
        targets("cluster", cluster::KERNELS),
        targets("scales", scales::KERNELS),
        targets("swiglu", swiglu::KERNELS),
        targets("attention", attention::KERNELS),
        targets("sequences", sequences::KERNELS),
        targets("rows", rows::KERNELS),
        targets("nodes", nodes::KERNELS),
        targets("nodes_attention", nodes::OF_ATTENTION),
        targets("collectives", collectives::KERNELS),
        targets("buckets", buckets::KERNELS),
        targets("norms", norms::KERNELS),
        targets("norms_of_products", norms::OF_PRODUCTS),
        targets("quantised", quantised::KERNELS),
        targets("experts", experts::KERNELS),
    ];
    families.into_iter().flatten().collect()
}

/// Mutants that no run finds, with reasons.
const EXCEPTIONS: &str = include_str!("exceptions.txt");
/// The kernels that find mutants. A full run writes the list if [`ACCEPT`] is `always`.
const FINDERS: &str = include_str!("finders.txt");
const ACCEPT: &str = "INSTA_UPDATE";

/// The number of kernels in a sample, which take half of its time, and the number of mutants.
const SAMPLE: (usize, usize) = (12, 24);
/// The time after which a mutant of a sample is searched in all kernels.
const SAMPLE_LIMIT: Duration = Duration::from_secs(20);
/// The time after which a mutant counts as not found. Most mutants are found by the first run.
const LIMIT: Duration = Duration::from_secs(60);

/// A full run takes only mutants whose names contain a line of this variable.
const ONLY: &str = "MUTANTS";

/// Returns the mutants that kernels reach, apart from exceptions, in random order.
fn drawn(reach: &Reach<'_>, mutants: &[Mutant], exceptions: &[Exception]) -> Vec<u32> {
    let numbers = reach.keys().copied();
    let is_meant = |number: &u32| !exceptions::contains(exceptions, &mutants[*number as usize - 1]);
    let mut drawn: Vec<_> = numbers.filter(is_meant).collect();
    // In random order, neighbours have different kernels and do not wait for each other.
    drawn.sort_by_cached_key(|number| draw(mutants[*number as usize - 1].to_string()));
    drawn
}

/// Searches these mutants.
///
/// # Panics
/// A mutant is not found.
fn find_all(reach: &Reach<'_>, numbers: &[u32]) -> Vec<Outcome> {
    let outcomes = search(reach, numbers, LIMIT);
    let lost = outcomes.iter().filter(|outcome| outcome.found.is_none());
    let named = |outcome: &Outcome| format!("{} in {:?}", outcome.mutant, outcome.kernels);
    let lost: Vec<_> = lost.map(named).collect();
    let found = outcomes.len() - lost.len();
    println!("found {found} of {} mutants", outcomes.len());
    assert!(lost.is_empty(), "not found: {lost:#?}");
    outcomes
}

/// The simulator finds a sample of the mutants, and a sample of the kernels without an active mutant is right.
#[test]
fn a_sample_of_mutants_is_found() {
    let targets = all_targets();
    let finders = Finders::parse(FINDERS);
    let kernels = finders.draw(draw("kernels"), SAMPLE.0);
    let all_kernels: Vec<_> = targets.iter().collect();
    let mut some_kernels = all_kernels.clone();
    some_kernels.retain(|target| kernels.contains(target.name()));
    let is_complete = some_kernels.len() == kernels.len();
    assert!(is_complete, "some of these do not exist: {kernels:?}");
    let reach_of_some = reach(&some_kernels, 1, &finders);
    let mutants = all();
    let exceptions = exceptions::parse(EXCEPTIONS);
    let mut stale = exceptions::without_mutant(&exceptions, &mutants);
    // `mutants` has all mutants of a header or none.
    let is_known = |header: &str| mutants.iter().any(|mutant| mutant.file == header);
    stale.retain(|name| {
        let (header, _) = name.split_once(" | ").unwrap_or_default();
        header.starts_with("mk/") && is_known(header)
    });
    assert_eq!(stale, [""; 0], "exceptions that name no mutant");
    let mut numbers = drawn(&reach_of_some, &mutants, &exceptions);
    numbers.retain(|number| {
        let mut finders = finders.kernels_of(&mutants[*number as usize - 1]).iter();
        finders.all(|kernel| kernels.contains(kernel.as_str()))
    });
    numbers.truncate(SAMPLE.1);
    let outcomes = search(&reach_of_some, &numbers, SAMPLE_LIMIT);
    let found = outcomes.iter().filter_map(Outcome::finder);
    let found: Vec<_> = found.map(|(mutant, _)| mutant).collect();
    println!("found {} of {} mutants", found.len(), numbers.len());
    numbers.retain(|number| !found.contains(&&mutants[*number as usize - 1]));
    if !numbers.is_empty() {
        // The list of finders lacks new code.
        find_all(&reach(&all_kernels, 1, &finders), &numbers);
    }
}

/// The simulator finds every mutant that kernels reach, and kernels reach all statements with mutants, apart from exceptions.
#[test]
#[ignore = "takes half an hour"]
fn every_mutant_is_found() {
    let targets = all_targets();
    let finders = Finders::parse(FINDERS);
    let reach = reach(&targets.iter().collect::<Vec<_>>(), 2, &finders);
    let mutants = all();
    let exceptions = exceptions::parse(EXCEPTIONS);
    let stale = exceptions::without_mutant(&exceptions, &mutants);
    let is_unreached = |(number, mutant): &(u32, &Mutant)| {
        mutant.operator == Operator::Deleted
            && !reach.contains_key(number)
            && !exceptions::contains(&exceptions, mutant)
    };
    let unreached = (1..).zip(&mutants).filter(is_unreached);
    let unreached: Vec<_> = unreached.map(|(_, mutant)| mutant.to_string()).collect();
    println!(
        "{} mutants, of which kernels reach {}; {} exceptions",
        mutants.len(),
        reach.len(),
        exceptions.len()
    );
    let only = std::env::var(ONLY).unwrap_or_default();
    let mut numbers = drawn(&reach, &mutants, &exceptions);
    numbers.retain(|number| {
        let name = mutants[*number as usize - 1].to_string();
        only.is_empty() || only.lines().any(|part| name.contains(part))
    });
    let outcomes = find_all(&reach, &numbers);
    assert!(
        stale.is_empty(),
        "exceptions that name no mutant: {stale:#?}"
    );
    assert!(
        unreached.is_empty(),
        "no kernel reaches these statements: {unreached:#?}"
    );
    let found = Finders::of(outcomes.iter().filter_map(Outcome::finder));
    if only.is_empty() && std::env::var(ACCEPT).is_ok_and(|value| value == "always") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mutants/finders.txt");
        std::fs::write(path, found.to_string()).expect("a list");
    }
}
