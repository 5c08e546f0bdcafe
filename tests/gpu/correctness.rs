//! Many shapes, both layouts of B, every tile and way between ranks, against a reference.

use crate::cases::{Case, cases};
use crate::lab::{Failure, Lab, Random, TimeLimit};
use crate::ranks::{compute, on_ranks, prepare, seed, worlds};
use mkernel::{Communicator, Device, KernelPlan, KernelSpec};
use mkernel_compile::{Store, build};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const CALLS: usize = 3;

#[test]
#[ignore = "needs GPUs"]
fn one_rank() {
    let _limit = TimeLimit::start("one_rank", Duration::from_secs(120));
    let seed = seed();
    run(1, seed);
}

#[test]
#[ignore = "needs GPUs"]
fn several_ranks() {
    let _limit = TimeLimit::start("several_ranks", Duration::from_secs(240));
    let seed = seed();
    for world in worlds(2) {
        run(world, seed);
    }
}

fn run(world: u32, seed: u64) {
    let cases = cases(world);
    compile(world, &cases);
    let errors = on_ranks(world, |ranks| {
        let lab = Lab::new(&ranks.context().default_stream())?;
        let mut seeds = Random(seed);
        let mut worst = 0f64;
        for case in &cases {
            let error = check(ranks, &lab, case, seeds.next());
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

/// Puts the kernels into the cache, by all cores of the host: ranks compile one after the other.
fn compile(world: u32, cases: &[Case]) {
    let device = on_ranks(1, |ranks| Ok::<Device, Failure>(ranks.device().clone())).remove(0);
    let store = Store::from_env();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(32));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let spec = KernelSpec::validate(case.problem.config(world));
                    let spec = spec
                        .and_then(|spec| spec.specialise(case.problem.shape))
                        .expect("valid");
                    let plan = KernelPlan::new(&spec, &device).expect("a plan");
                    build(&plan, &store).expect("a kernel");
                }
            });
        }
    });
}
