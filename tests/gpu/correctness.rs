//! Tests of GEMM operators on one node: many shapes, both layouts of B, every tile, and every way of transfer and
//! reduction.

use crate::cases::{Case, cases};
use crate::compile::compile;
use crate::ranks::{compute, on_ranks, prepare, seed, worlds};
use mkernel::Communicator;
use mkernel_testing::lab::{Failure, Lab, Random, TimeLimit};
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
    let cases = cases(world);
    let specs: Vec<_> = cases.iter().map(|case| case.problem.spec(world)).collect();
    compile(&specs);
    let errors = on_ranks(world, |ranks| {
        let lab = Lab::new(&ranks.context().default_stream())?;
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
