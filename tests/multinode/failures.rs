//! Ranks that stay away or go, and NICs that fail: an error on every rank, in time.

use crate::rank::{SHAPE, on_ranks};
use mkernel::{
    Communicator, Dim, Error, FabricError, Failure, Faults, GemmConfig, GemmOp, KernelConfig, Nic,
    Simulation, Transport,
};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_millis(500);

#[test]
fn an_absent_rank_ends_the_calls_of_all() {
    // Of gemm_ar, ranks that gave up read results while others, which gave up too, still write them: the simulator objects.
    for op in [GemmOp::AgGemm, GemmOp::GemmRs] {
        on_ranks(op, 3, Faults::default(), |rank| {
            let mut c = rank.poisoned();
            rank.launch(&mut c).expect("launched");
            rank.check(&c);
            rank.ranks.barrier().expect("all came");
            if rank.ranks.rank() == 3 {
                rank.ranks.barrier().expect("all have failed");
                return;
            }
            rank.ranks.set_timeout(DEADLINE);
            let started = Instant::now();
            rank.launch(&mut c).expect("launched");
            let error = rank.ranks.synchronize(&rank.stream);
            let error = error.expect_err("a rank is away");
            let Error::Timeout {
                rank: waited_on,
                epoch: 2,
                waited,
                ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!(waited_on, rank.ranks.rank());
            assert!(waited < 2 * DEADLINE, "{waited:?}");
            assert!(started.elapsed() < Duration::from_secs(20));
            assert_eq!(rank.ranks.findings(), []);
            rank.ranks.barrier().expect("all have failed");
        });
    }
}

/// Its rail names it, and the other ranks of that node, too.
#[test]
fn a_rank_that_goes_is_named() {
    on_ranks(GemmOp::AgGemm, 4, Faults::default(), |rank| {
        let mut c = rank.poisoned();
        rank.launch(&mut c).expect("launched");
        rank.check(&c);
        rank.ranks.barrier().expect("all came");
        if rank.ranks.rank() == 3 {
            // A GPU that is in use and idle: waits of the others are no deadlock.
            drop(rank.operator);
            rank.ranks.barrier().expect("all have failed");
            return;
        }
        rank.ranks.set_timeout(4 * DEADLINE);
        // It has gone by then.
        std::thread::sleep(Duration::from_millis(500));
        rank.launch(&mut c).expect("launched");
        let error = rank.ranks.synchronize(&rank.stream);
        let error = error.expect_err("a rank has gone");
        let is_named = match (&error, rank.ranks.rank()) {
            (Error::Fabric(FabricError::Ended { peer }), 1) => &*peer.name == "rank 3",
            (Error::Timeout { lost, .. }, 0) => *lost == Some(3),
            (Error::Timeout { .. }, 2) => true,
            _ => false,
        };
        assert!(is_named, "rank {}: {error}", rank.ranks.rank());
        rank.ranks.barrier().expect("all have failed");
    });
}

#[test]
fn a_nic_that_fails_is_an_error_on_every_rank() {
    let faults = Faults {
        failure: Some(Failure::Nic { after_writes: 5 }),
        ..Faults::default()
    };
    on_ranks(GemmOp::GemmRs, 5, faults, |rank| {
        rank.ranks.set_timeout(Duration::from_secs(5));
        let mut c = rank.poisoned();
        let mut call = || {
            rank.launch(&mut c)?;
            rank.ranks.synchronize(&rank.stream)
        };
        let error = (0..20).find_map(|_| call().err());
        let error = error.expect("a NIC has failed");
        let is_told = matches!(
            error,
            Error::Fabric(FabricError::Nic { .. } | FabricError::Lost { .. })
                | Error::Timeout { .. }
        );
        assert!(is_told, "{error}");
    });
}

#[test]
fn what_does_not_fit_the_ranks_is_refused() {
    let prepare = |nodes, transports: [f64; 4]| -> Vec<Error> {
        let simulation = Simulation {
            ranks: 4,
            ..Simulation::default()
        };
        let ranks = Communicator::simulated(&simulation).expect("simulated GPUs");
        let config = GemmConfig {
            m: Dim::Static(SHAPE.m),
            n: Dim::Static(SHAPE.n),
            k: Dim::Static(SHAPE.k),
            ..GemmConfig::new(GemmOp::GemmRs)
        };
        let config = KernelConfig {
            nodes,
            ..KernelConfig::new(4, config)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .zip(transports)
                .map(|(ranks, gb_per_s)| {
                    let config = &config;
                    scope.spawn(move || {
                        let nic = Nic {
                            gb_per_s,
                            ..Nic::default()
                        };
                        let faults = Faults::default();
                        ranks.set_transport(Transport::Emulated { nic, faults });
                        ranks.prepare(config, SHAPE).expect_err("refused")
                    })
                })
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|result| result.expect("no panic")).collect()
        })
    };
    for error in prepare(3, [50.0; 4]) {
        assert!(matches!(error, Error::Nodes { nodes: 3, .. }), "{error}");
    }
    for error in prepare(2, [50.0, 50.0, 25.0, 50.0]) {
        let Error::Mismatch { ranks, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(ranks, &[2]);
    }
}
