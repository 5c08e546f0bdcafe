//! Mutations of kernels of one node. A test plants one mistake at a time, and the simulator or the comparison of the
//! results must find it with some seed. Kernels without a mutation must be right with every seed.
//!
//! docs/book/src/simulator.md lists the mistakes that the simulator cannot find.

mod ag_gemm;
mod attention;
mod cluster;
mod epilogue;
mod reduce;
mod scales;
mod swiglu;

use mkernel::spec::{BLayout, Dim, Epilogue, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel_testing::jobs::{
    GemmJob, SimulatedJob, all_mutations_are_found, none_fails, right_for_seeds,
};
use std::ops::Range;

/// The number of seeds with which a mutation must be found.
const SEEDS_TO_FIND: u64 = 50;
/// The number of seeds with which the ignored test runs a kernel without a mutation.
const SEEDS_WITHOUT_ALARM: u64 = 200;
/// The number of seeds with which the other tests run a kernel of a GEMM without a mutation. Calls overlap with odd seeds.
const DEFAULT_SEEDS: u64 = 2;
/// The number of seeds that one thread runs one after the other. Other threads run the other seeds of the kernel.
const SEEDS_IN_A_ROW: usize = 5;

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

/// An edit that defines a wait without acquire semantics.
const RELAXED_WAIT: (&str, &str) = (
    "#include <mk/deadline.cuh>",
    "#include <mk/deadline.cuh>\n#ifndef RELAXED_WAIT\n#define RELAXED_WAIT\nnamespace mk {\n\
     inline void relaxed_wait(const RankContext&, const u32* flag, const WaitSite& site) {\n\
     while (!has_reached(load_relaxed_sys(flag), site.wanted)) __nanosleep(32); }\n}\n#endif",
);

#[test]
fn every_mutation_is_found() {
    let mutations = [ag_gemm::MUTATIONS, reduce::MUTATIONS, epilogue::MUTATIONS].concat();
    all_mutations_are_found(&mutations, SEEDS_TO_FIND);
}

#[test]
fn every_mutation_of_clusters_is_found() {
    all_mutations_are_found(cluster::MUTATIONS, SEEDS_TO_FIND);
}

#[test]
fn every_mutation_of_scales_is_found() {
    all_mutations_are_found(scales::MUTATIONS, SEEDS_TO_FIND);
}

#[test]
fn every_mutation_of_swiglu_is_found() {
    all_mutations_are_found(swiglu::MUTATIONS, SEEDS_TO_FIND);
}

#[test]
fn every_mutation_of_attention_is_found() {
    all_mutations_are_found(attention::MUTATIONS, SEEDS_TO_FIND);
}

/// Runs every kernel without a mutation.
fn all_are_right<J: SimulatedJob>(kernels: &[Kernel<J>], seeds: u64) {
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
fn kernels_without_mutations_are_right() {
    all_are_right(
        &[
            ag_gemm::KERNELS,
            reduce::KERNELS,
            epilogue::KERNELS,
            cluster::KERNELS,
            scales::KERNELS,
            swiglu::KERNELS,
        ]
        .concat(),
        DEFAULT_SEEDS,
    );
}

#[test]
fn attention_without_mutations_is_right() {
    all_are_right(attention::KERNELS, 1);
}

/// This test is for changes of the simulator and of code that the operators share.
#[test]
#[ignore = "takes a quarter of an hour"]
fn kernels_without_mutations_are_right_with_all_seeds() {
    all_are_right(
        &[
            ag_gemm::KERNELS,
            reduce::KERNELS,
            epilogue::KERNELS,
            cluster::KERNELS,
            scales::KERNELS,
            swiglu::KERNELS,
        ]
        .concat(),
        SEEDS_WITHOUT_ALARM,
    );
    all_are_right(attention::KERNELS, SEEDS_WITHOUT_ALARM);
}
