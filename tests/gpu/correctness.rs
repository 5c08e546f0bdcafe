//! Tests of GEMM operators on one node: many shapes, both layouts of B, every tile, every transfer and every reduction.

use crate::cases::{Case, cases};
use crate::compile::{compile, device};
use crate::ranks::{compute, on_ranks, prepare, seed, worlds};
use mkernel::{Communicator, KernelPlan};
use mkernel_testing::lab::{Failure, Lab, Random, TimeLimit};
use mkernel_testing::ranks::ranks_per_gpu;
use std::time::Duration;

const CALLS: usize = 3;

#[test]
#[ignore = "needs GPUs"]
fn every_case_of_one_rank_is_right() {
    let _limit = TimeLimit::start("one_rank", Duration::from_secs(120));
    let seed = seed();
    run(1, seed);
}

#[test]
#[ignore = "needs GPUs"]
fn every_case_of_several_ranks_is_right() {
    let _limit = TimeLimit::start("several_ranks", Duration::from_secs(240));
    let seed = seed();
    for world in worlds(2) {
        run(world, seed);
    }
}

fn run(world: u32, seed: u64) {
    let (mut cases, device) = (cases(world), device(world));
    if ranks_per_gpu() > 1 {
        // Some cases need clusters, or more SMs than a part of a GPU has. `every_case_has_a_plan` checks whole GPUs.
        let count = cases.len();
        cases.retain(|case| {
            let plan = KernelPlan::new(&case.problem.spec(world), &device);
            plan.is_ok_and(|plan| plan.launch().cluster_ctas == 1)
        });
        println!("{}: {} of {count} cases", device.name, cases.len());
    }
    let specs: Vec<_> = cases.iter().map(|case| case.problem.spec(world)).collect();
    compile(&specs);
    let errors = on_ranks(world, |ranks| {
        let lab = Lab::new(&ranks.default_stream())?;
        let mut seeds = Random(seed);
        let mut worst = 0f64;
        for case in &cases {
            let error = check(ranks, &lab, case, seeds.draw());
            worst = worst.max(error.map_err(|error| format!("{case:?}: {error}"))?);
        }
        Ok(worst)
    });
    let worst = errors.into_iter().fold(0.0, f64::max);
    println!(
        "world {world}: {} cases, {CALLS} calls each, largest relative error {worst:.2e}",
        cases.len()
    );
}

fn check(ranks: &Communicator, lab: &Lab, case: &Case, seed: u64) -> Result<f64, Failure> {
    let (operator, operands) = prepare(ranks, lab, case.problem, case.pad)?;
    compute(ranks, lab, &operator, &operands, (CALLS, seed))
}
