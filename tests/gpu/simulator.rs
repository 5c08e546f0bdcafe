//! A test that GPUs and simulated GPUs give equal bits.

use crate::ranks::worlds;
use mkernel_testing::jobs::{Backend, common_jobs};

/// `tests/simulator.rs` compares simulated GPUs with the expected bits of these jobs.
#[test]
#[ignore = "needs GPUs"]
fn gpus_give_the_bits_of_the_simulator() {
    let jobs: Vec<_> = worlds(1).into_iter().flat_map(common_jobs).collect();
    for (name, job) in &jobs {
        if let Err(failure) = job.run_on(Backend::Gpus) {
            panic!("{name}: {failure}");
        }
    }
    println!("{} jobs with the simulator's bits", jobs.len());
}
