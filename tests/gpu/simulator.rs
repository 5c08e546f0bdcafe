//! GPUs and simulated GPUs agree.

use crate::ranks::worlds;
use mkernel_testing::jobs::{Where, agreed};

/// `tests/simulator.rs` shows that simulated GPUs give the expected bits of these jobs; here it is the GPUs' turn.
#[test]
#[ignore = "needs GPUs"]
fn gpus_give_the_simulators_bits() {
    let jobs: Vec<_> = worlds(1).into_iter().flat_map(agreed).collect();
    for (name, job) in &jobs {
        if let Err(failure) = job.run_on(Where::Gpus) {
            panic!("{name}: {failure}");
        }
    }
    println!("{} jobs with the simulator's bits", jobs.len());
}
