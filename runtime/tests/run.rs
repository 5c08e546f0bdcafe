//! Tests of `mkernel::run` on simulated GPUs.

#![cfg(feature = "simulator")]

use mkernel::{Communicator, Error, RunError, Simulation};

/// Runs `job` on four simulated GPUs, and returns its errors.
fn failed(
    job: impl Fn(Communicator) -> Result<u32, Box<dyn std::error::Error + Send + Sync>> + Sync,
) -> RunError {
    mkernel::run(simulated(), job).expect_err("a rank fails")
}

fn simulated() -> Vec<Communicator> {
    let simulation = Simulation {
        ranks: 4,
        ..Simulation::default()
    };
    Communicator::simulated(&simulation).expect("simulated GPUs")
}

#[test]
fn results_are_in_the_order_of_ranks() {
    let ranks = mkernel::run(simulated(), |ranks| ranks.barrier().map(|()| ranks.rank()));
    assert_eq!(ranks.expect("no error"), [0, 1, 2, 3]);
}

#[test]
fn the_error_that_caused_others_comes_first() {
    let error = failed(|ranks| match ranks.rank() {
        2 => Err("a file is missing".into()),
        rank => Ok(ranks.barrier().map(|()| rank)?),
    });
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "rank 2: a file is missing", "{text}");
    assert!(
        lines[1].starts_with("rank 0: ") && lines[3].starts_with("rank 3: "),
        "{text}"
    );
    assert_eq!(format!("{error:?}"), text, "main prints this");
    let (rank, cause) = error.cause();
    assert!(rank == 2 && cause.is_some_and(|cause| !cause.is::<Error>()));
}

#[test]
fn a_panic_comes_before_the_errors_of_other_ranks() {
    let error = failed(|ranks| {
        assert!(ranks.rank() != 3, "rank {} is unlucky", ranks.rank());
        Ok(ranks.barrier().map(|()| ranks.rank())?)
    });
    let text = error.to_string();
    assert!(
        text.starts_with("rank 3 has panicked: rank 3 is unlucky\nrank 0: "),
        "{text}"
    );
    assert_eq!(error.cause().0, 3);
    assert!(error.cause().1.is_none());
}
