//! Mistakes planted in kernels, one at a time: the simulator finds each. The kernels as they are raise no alarm.
//!
//! What it cannot find is listed in runtime/simulator/README.md.

mod ag_gemm;
mod attention;
mod epilogue;
mod reduce;

use mkernel::{BLayout, Dim, Epilogue, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel_testing::jobs::{GemmJob, SimulatedJob, mutated, none_fails, right_for_seeds};
use std::ops::Range;

/// Seeds within which a mistake must be found.
const SEEDS_TO_FIND: u64 = 50;
/// Seeds for which a kernel without a mistake must be right …
const SEEDS_WITHOUT_ALARM: u64 = 200;
/// … and for which it is run each time.
const SEEDS_EACH_TIME: u64 = 2;
/// Seeds that run in a row; others of the kernel run beside them.
const SEEDS_IN_A_ROW: usize = 5;

/// A kernel in which mistakes are planted; it has what its mistakes need.
type Kernel<J = GemmJob> = (&'static str, fn() -> J);

/// A mistake: what is replaced by what.
#[derive(Clone, Copy)]
struct Mutation<J = GemmJob> {
    name: &'static str,
    job: fn() -> J,
    edits: &'static [(&'static str, &'static str)],
}

const fn mutation<J>(
    name: &'static str,
    job: fn() -> J,
    edits: &'static [(&'static str, &'static str)],
) -> Mutation<J> {
    Mutation { name, job, edits }
}

fn job(
    (op, epilogue, tuning): (GemmOp, Epilogue, Tuning),
    world: u32,
    shape: GemmShape,
    b_layout: BLayout,
    sms: u32,
) -> GemmJob {
    let config = GemmConfig {
        op,
        m: Dim::Static(shape.m),
        n: Dim::Static(shape.n),
        k: Dim::Static(shape.k),
        b_layout,
        epilogue,
        tuning,
    };
    GemmJob::new(world, config, shape, sms)
}

/// Defines a wait that does not acquire.
const RELAXED_WAIT: (&str, &str) = (
    "#include <mk/deadline.cuh>",
    "#include <mk/deadline.cuh>\n#ifndef RELAXED_WAIT\n#define RELAXED_WAIT\nnamespace mk {\n\
     inline void relaxed_wait(const RankContext&, const u32* flag, const WaitSite& site) {\n\
     while (!has_reached(load_relaxed_sys(flag), site.wanted)) __nanosleep(32); }\n}\n#endif",
);

#[test]
fn every_mistake_is_found() {
    all_are_found(&[ag_gemm::MUTATIONS, reduce::MUTATIONS, epilogue::MUTATIONS].concat());
}

#[test]
fn every_mistake_in_attention_is_found() {
    all_are_found(attention::MUTATIONS);
}

fn all_are_found<J: SimulatedJob + Sync>(all: &[Mutation<J>]) {
    let plant = |mistake: &Mutation<J>| (mistake.name, mutated((mistake.job)(), mistake.edits));
    mkernel_testing::jobs::all_are_found(&all.iter().map(plant).collect::<Vec<_>>(), SEEDS_TO_FIND);
}

/// Runs every kernel as it is.
fn all_are_quiet<J: SimulatedJob>(kernels: &[Kernel<J>], seeds: u64) {
    let runs: Vec<(Kernel<J>, Range<u64>)> = kernels
        .iter()
        .flat_map(|kernel| {
            let starts = (0..seeds).step_by(SEEDS_IN_A_ROW);
            starts.map(move |start| (*kernel, start..(start + SEEDS_IN_A_ROW as u64).min(seeds)))
        })
        .collect();
    none_fails(&runs, |((name, job), seeds)| {
        right_for_seeds(name, &job(), seeds.clone())
    });
}

#[test]
fn kernels_as_they_are_raise_no_alarm() {
    all_are_quiet(
        &[ag_gemm::KERNELS, reduce::KERNELS, epilogue::KERNELS].concat(),
        SEEDS_EACH_TIME,
    );
}

#[test]
fn attention_as_it_is_raises_no_alarm() {
    all_are_quiet(attention::KERNELS, attention::SEEDS_EACH_TIME);
}

/// After a change of the simulator or of what the operators share.
#[test]
#[ignore = "takes a quarter of an hour"]
fn no_kernel_raises_an_alarm_in_all_seeds() {
    all_are_quiet(
        &[ag_gemm::KERNELS, reduce::KERNELS, epilogue::KERNELS].concat(),
        SEEDS_WITHOUT_ALARM,
    );
    all_are_quiet(attention::KERNELS, SEEDS_WITHOUT_ALARM);
}
