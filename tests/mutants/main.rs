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
mod reduce;
mod rows;
mod scales;
mod sequences;
mod swiglu;

use mkernel::spec::{BLayout, Backend, Dim, Epilogue, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel_compile::headers;
use mkernel_testing::jobs::search::{Outcome, Reach, Target, reach, search};
use mkernel_testing::jobs::{GemmJob, SimulatedJob};
use mkernel_testing::mutants::{Mutant, Operator, all, exceptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// A kernel that is mutated: its name, and a job in which its mutations have an effect.
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
        targets("experts", experts::KERNELS),
    ];
    families.into_iter().flatten().collect()
}

/// Mutants that no run finds, and why.
const EXCEPTIONS: &str = include_str!("exceptions.txt");
/// One in this number of mutants is in the sample. Most of the time of a sample is for the kernels without an active mutant.
const SAMPLE: u64 = 48;
/// The time after which a mutant counts as not found. Most mutants are found by the first run.
const LIMIT: Duration = Duration::from_secs(60);

/// A full run takes only mutants whose names contain a line of this variable.
const ONLY: &str = "MUTANTS";

/// Returns the mutants that kernels reach, apart from exceptions, with a hash that a change of the header changes.
fn drawn(reach: &Reach<'_>, mutants: &[Mutant]) -> Vec<(u64, u32)> {
    let exceptions = exceptions::parse(EXCEPTIONS);
    let stale = exceptions::without_mutant(&exceptions, mutants);
    assert!(
        stale.is_empty(),
        "exceptions that name no mutant: {stale:#?}"
    );
    let headers = headers(Backend::HostCxx);
    let draw = |number: &u32| {
        let mutant = &mutants[*number as usize - 1];
        let header = headers.iter().find(|(name, _)| *name == mutant.file);
        let mut hasher = DefaultHasher::new();
        (header, mutant.to_string()).hash(&mut hasher);
        let is_exception = exceptions::contains(&exceptions, mutant);
        (!is_exception).then(|| (hasher.finish(), *number))
    };
    // In the order of hashes, neighbours have different kernels, and do not wait for each other.
    let mut drawn: Vec<_> = reach.keys().filter_map(draw).collect();
    drawn.sort_unstable();
    drawn
}

/// Searches these mutants.
///
/// # Panics
/// A mutant is not found.
fn find_all(reach: &Reach<'_>, numbers: &[u32]) {
    let outcomes = search(reach, numbers, LIMIT);
    let lost = outcomes.iter().filter(|outcome| outcome.found.is_none());
    let named = |outcome: &Outcome| format!("{} in {:?}", outcome.mutant, outcome.kernels);
    let lost: Vec<_> = lost.map(named).collect();
    let found = outcomes.len() - lost.len();
    println!("found {found} of {} mutants", outcomes.len());
    assert!(lost.is_empty(), "not found: {lost:#?}");
}

/// Kernels without an active mutant are right, and the simulator finds a sample of the mutants.
#[test]
fn a_sample_of_mutants_is_found() {
    let targets = all_targets();
    let reach = reach(&targets, 1);
    let drawn = drawn(&reach, &all());
    let sample = drawn.iter().filter(|(hash, _)| hash % SAMPLE == 0);
    let numbers: Vec<u32> = sample.map(|(_, number)| *number).collect();
    find_all(&reach, &numbers);
}

/// The simulator finds every mutant that kernels reach, and kernels reach all statements with mutants, apart from exceptions.
#[test]
#[ignore = "takes half an hour"]
fn every_mutant_is_found() {
    let targets = all_targets();
    let reach = reach(&targets, 2);
    let mutants = all();
    let drawn = drawn(&reach, &mutants);
    let exceptions = exceptions::parse(EXCEPTIONS);
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
    let numbers = drawn.into_iter().map(|(_, number)| number);
    let is_meant = |number: &u32| {
        let name = mutants[*number as usize - 1].to_string();
        only.is_empty() || only.lines().any(|part| name.contains(part))
    };
    find_all(&reach, &numbers.filter(is_meant).collect::<Vec<_>>());
    assert!(
        unreached.is_empty(),
        "no kernel reaches these statements: {unreached:#?}"
    );
}
