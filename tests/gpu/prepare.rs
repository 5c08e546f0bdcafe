//! The time that a communicator takes to prepare operators with cached kernels.

use crate::ranks::{on_ranks, worlds};
use mkernel::{
    Communicator,
    network::{Faults, NicModel, Transport},
};
use mkernel_testing::kinds::ten_kinds;
use mkernel_testing::lab::{Failure, TimeLimit};
use std::time::{Duration, Instant};

const ROUNDS: usize = 10;
/// The longest accepted median.
const LIMIT: Duration = Duration::from_millis(5);

/// Prepares all kinds once, which compiles their kernels, and then in each round, without equal operators that could be shared.
/// Returns the times of a rank in the rounds.
fn prepare_all(ranks: &Communicator, nodes: u32) -> Result<Vec<Duration>, Failure> {
    let (nic, faults) = (NicModel::default(), Faults::default());
    ranks.set_transport(Transport::Emulated { nic, faults });
    let kinds = ten_kinds(ranks.world(), nodes);
    let (mut operators, mut times) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        operators.clear();
        ranks.barrier()?;
        for config in &kinds {
            let shape = config.problem.shape().ok_or("a dynamic dimension")?;
            let started = Instant::now();
            operators.push(ranks.prepare(config, shape)?);
            if round > 0 {
                times.push(started.elapsed());
            }
        }
    }
    println!("{nodes} nodes: {:?}", ranks.stats());
    Ok(times)
}

#[test]
#[ignore = "needs GPUs"]
fn a_cached_kernel_is_prepared_in_a_few_milliseconds() {
    let _limit = TimeLimit::start("prepare", Duration::from_secs(300));
    for world in worlds(1) {
        for nodes in [1, 2].into_iter().filter(|nodes| world % nodes == 0) {
            let ranks = on_ranks(world, |ranks| prepare_all(ranks, nodes));
            let slowest = (0..ranks[0].len()).map(|i| ranks.iter().map(|times| times[i]).max());
            let mut slowest: Vec<Duration> = slowest.flatten().collect();
            slowest.sort_unstable();
            let (median, most) = (slowest[slowest.len() / 2], slowest[slowest.len() - 1]);
            println!("world {world}, {nodes} nodes: median {median:?}, at most {most:?}");
            assert!(median <= LIMIT, "{median:?}");
        }
    }
}
