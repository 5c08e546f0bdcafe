//! Tests of communicators that are rebuilt after ranks have failed. Results are right, and memory of GPUs does not grow.

use crate::ranks::{seed, worlds};
use mkernel::Communicator;
use mkernel::network::{Faults, NicModel, Transport};
use mkernel_testing::lab::TimeLimit;
use mkernel_testing::ranks::gpus_of_ranks;
use mkernel_testing::survival::{AnySum, FaultKind, Faulty, Random, weights};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The timeout of hosts, after which a rank that is stopped is left out.
const TIMEOUT: Duration = Duration::from_secs(4);

fn ranks(world: u32) -> Vec<Communicator> {
    let gpus = gpus_of_ranks(world).expect("a driver");
    Communicator::local(&gpus).expect("GPUs")
}

/// Up to half of the ranks fail at random calls, on one node and on two emulated nodes.
#[test]
#[ignore = "needs GPUs"]
fn ranks_that_are_left_compute_whenever_others_fail() {
    let _limit = TimeLimit::start("rebuild", Duration::from_secs(240));
    let seed = seed();
    for world in worlds(4) {
        for job in 0..20 {
            let mut random = Random(seed + job);
            let nodes = 1 + random.below(2) as u32;
            let job = Faulty::random(&mut random, (world, nodes), &FaultKind::ALL);
            let started = Instant::now();
            job.run(ranks(world), TIMEOUT, |failure| {
                let (nic, faults) = (NicModel::default(), Faults::default());
                let faults = Faults { failure, ..faults };
                Transport::Emulated { nic, faults }
            });
            println!("{:?} for {job:?}", started.elapsed());
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn fifty_rebuilds_need_as_much_memory_as_one() {
    let _limit = TimeLimit::start("fifty rebuilds", Duration::from_secs(240));
    for world in worlds(2) {
        let free = Mutex::new(Vec::new());
        let on_rank = |mut ranks: Communicator| {
            let weights = weights(&ranks);
            for _ in 0..50 {
                let sum = AnySum::prepare(&ranks, 1)?;
                sum.check(&ranks, &weights)?;
                let left = ranks.rebuild(world)?;
                drop((sum, ranks));
                left.barrier()?;
                if left.rank() == 0 {
                    let (bytes, _) = mkernel::cudarc::driver::result::mem_get_info()?;
                    free.lock().expect("no panic").push(bytes);
                }
                left.barrier()?;
                ranks = left;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        mkernel::run(ranks(world), |ranks| {
            ranks.context().bind_to_thread()?;
            on_rank(ranks)
        })
        .expect("all ranks are left");
        let free = free.into_inner().expect("no panic");
        println!("{world} ranks, free bytes: {} then {}", free[0], free[49]);
        assert!(free[49] >= free[0], "{free:?}");
    }
}
