//! Tests of failures on several nodes: absent ranks, ranks that end, NICs that fail, and nodes and NICs that do not fit the
//! ranks. Every rank must get an error in time.

use crate::rank::{SHAPE, on_nodes, on_ranks};
use mkernel::testing::in_threads;
use mkernel::{
    Communicator, Error, KernelConfig, Simulation,
    error::{ClusterError, FabricError},
    network::{Failure, Faults, NicModel, Transport},
    spec::{Dim, GemmConfig, GemmOp},
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_millis(500);

#[test]
fn an_absent_rank_ends_the_calls_of_all() {
    // gemm_ar is left out: after an abort its ranks read results that other ranks still write, which the simulator reports.
    for op in [GemmOp::AgGemm, GemmOp::GemmRs] {
        on_ranks(op, 3, Faults::default(), |rank| {
            let mut c = rank.poisoned();
            rank.launch(&mut c).expect("launched");
            rank.check(&c);
            rank.ranks.barrier().expect("all ranks take part");
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

/// Rank 1 is absent. Rank 0 waits for it until a short deadline, and the ranks of the other node learn of that long before
/// their own deadlines.
#[test]
fn a_failed_call_ends_the_waits_of_other_nodes() {
    let long = 120 * DEADLINE;
    on_ranks(GemmOp::AgGemm, 6, Faults::default(), |rank| {
        let this = rank.ranks.rank();
        if this != 1 {
            rank.ranks
                .set_timeout(if this == 0 { DEADLINE } else { long });
            let mut c = rank.poisoned();
            let started = Instant::now();
            rank.launch(&mut c).expect("launched");
            let error = rank.ranks.synchronize(&rank.stream);
            let error = error.expect_err("rank 1 is away");
            let took = started.elapsed();
            let named = match &error {
                Error::Timeout { aborted_by, .. } => aborted_by.unwrap_or(this),
                _ => panic!("rank {this}: {error}"),
            };
            assert_eq!(named, 0, "rank {this}: {error}");
            assert!(took < long / 2, "rank {this}: {error}, after {took:?}");
        }
        rank.ranks.barrier().expect("all have failed");
    });
}

/// A way to leave a job.
#[derive(Clone, Copy, Debug)]
enum Exit {
    /// The rank drops its operator, which sends close messages.
    Ends,
    /// The rank sends no close message, like a process that is killed.
    Dies,
}

/// Returns whether the error names the lost rank.
fn names(error: &Error, lost: u32) -> bool {
    match error {
        Error::RankLost { rank, .. } | Error::LeftWithoutCall { rank, .. } => *rank == lost,
        Error::Timeout {
            lost: Some(rank), ..
        } => *rank == lost,
        Error::Fabric(FabricError::PeerAborted {
            lost_rank: rank, ..
        }) => *rank == lost,
        Error::Fabric(FabricError::PeerClosed { peer } | FabricError::Lost { peer, .. }) => {
            *peer.name == *format!("rank {lost}")
        }
        _ => false,
    }
}

/// Makes one call, lets the rank `lost` leave, and makes another call on the other ranks, which must all name the lost
/// rank.
fn every_rank_names(lost: u32, nodes: (u32, u32), op: GemmOp, exit: Exit) {
    let errors = on_nodes(nodes, op, 4, Faults::default(), |rank| {
        let mut c = rank.poisoned();
        rank.launch(&mut c).expect("launched");
        rank.check(&c);
        rank.ranks.barrier().expect("all ranks take part");
        let this = rank.ranks.rank();
        if this == lost {
            match exit {
                Exit::Ends => drop(rank),
                Exit::Dies => {
                    let died = catch_unwind(AssertUnwindSafe(move || {
                        let _alive = rank;
                        resume_unwind(Box::new("it dies"));
                    }));
                    died.expect_err("the rank has died");
                }
            }
            return None;
        }
        rank.ranks.set_timeout(40 * DEADLINE);
        let started = Instant::now();
        let outcome = rank.launch(&mut c);
        let outcome = outcome.and_then(|()| rank.ranks.synchronize(&rank.stream));
        let took = started.elapsed();
        Some((this, outcome.expect_err("a rank has gone"), took))
    });
    for (rank, error, took) in errors.into_iter().flatten() {
        let error = match error {
            Error::Aborted { cause: Some(cause) } => (*cause).clone(),
            error => error,
        };
        let what = format!("{op} on {nodes:?}, {lost} {exit:?}, rank {rank}: {error}");
        assert!(names(&error, lost), "{what}");
        assert!(took < 40 * DEADLINE, "{what} after {took:?}");
    }
}

#[test]
fn a_rank_that_ends_is_named_by_every_rank() {
    every_rank_names(3, (2, 2), GemmOp::AgGemm, Exit::Ends);
    every_rank_names(0, (3, 2), GemmOp::AgGemm, Exit::Ends);
}

#[test]
fn a_rank_that_dies_is_named_by_every_rank() {
    every_rank_names(3, (2, 2), GemmOp::AgGemm, Exit::Dies);
    every_rank_names(0, (2, 2), GemmOp::GemmRs, Exit::Dies);
    every_rank_names(2, (3, 2), GemmOp::GemmRs, Exit::Dies);
    every_rank_names(5, (2, 4), GemmOp::AgGemm, Exit::Dies);
}

/// The end of a rank is no error on a late peer whose puts have completions in flight.
#[test]
fn a_rank_may_end_before_its_peers_have_finished() {
    for seed in 0..16 {
        let late = Faults {
            seed,
            jitter: Duration::from_millis(60),
            ..Faults::default()
        };
        on_nodes((2, 1), GemmOp::AgGemm, seed, late, |rank| {
            let is_late = rank.ranks.rank() == 0;
            if is_late {
                std::thread::sleep(Duration::from_millis(150));
            }
            let mut c = rank.poisoned();
            rank.launch(&mut c).expect("launched");
            rank.check(&c);
            if is_late {
                std::thread::sleep(Duration::from_millis(200));
                rank.ranks.check().expect("no call has failed");
            }
        });
    }
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
        let is_failure = matches!(
            error,
            Error::Fabric(
                FabricError::Nic { .. }
                    | FabricError::Lost { .. }
                    | FabricError::PeerAborted { .. }
            ) | Error::Timeout { .. }
                | Error::RankLost { .. }
        );
        assert!(is_failure, "{error}");
        let (first, later) = (error.to_string(), call().expect_err("a NIC has failed"));
        assert!(later.to_string().contains(&first), "{first}; then {later}");
    });
}

/// Prepares `gemm_rs` on four ranks with these NICs, which must be refused. Returns the error of each rank.
fn prepare_errors(nodes: u32, nics: [NicModel; 4]) -> Vec<Error> {
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
    in_threads(ranks.into_iter().zip(nics), |(ranks, nic)| {
        let faults = Faults::default();
        ranks.set_transport(Transport::Emulated { nic, faults });
        ranks.prepare(&config, SHAPE).expect_err("refused")
    })
}

#[test]
fn nodes_and_nics_that_do_not_fit_the_ranks_are_refused() {
    let nic = |gb_per_s| NicModel {
        gb_per_s,
        ..NicModel::default()
    };
    for error in prepare_errors(3, [50.0; 4].map(nic)) {
        assert!(
            matches!(error, Error::Cluster(ClusterError::Nodes { nodes: 3, .. })),
            "{error}"
        );
    }
    let short = NicModel {
        write_bytes: 64,
        ..NicModel::default()
    };
    for error in prepare_errors(2, [(); 4].map(|()| short.clone())) {
        let Error::Fabric(FabricError::Config(mistakes)) = &error else {
            panic!("{error}");
        };
        let [bytes] = &mistakes[..] else {
            panic!("{mistakes:?}");
        };
        assert!(bytes.contains("have at most 64"), "{bytes}");
    }
    for error in prepare_errors(2, [50.0, 50.0, 25.0, 50.0].map(nic)) {
        let Error::Mismatch { ranks, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(ranks, &[2]);
    }
}
