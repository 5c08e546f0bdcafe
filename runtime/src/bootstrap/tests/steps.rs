//! Tests of the steps of a [`Collective`], for any group.

use super::*;
use crate::error::ClusterError;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs `body` on `world` threads, one per rank, and returns the results by rank.
fn on_ranks<T: Send>(world: u32, body: impl Fn(Collective) -> T + Sync) -> Vec<T> {
    in_threads(local::groups(world), |group| body(Collective::new(group)))
}

#[test]
fn agree_brings_payloads_of_all_ranks() {
    let results = on_ranks(8, |mut ranks| {
        let mine = vec![ranks.rank() as u8; 3];
        ranks.agree("plan", Ok(("value", mine)), TIMEOUT)
    });
    for result in results {
        let (value, payloads) = result.expect("all ranks agree");
        assert_eq!(value, "value");
        assert_eq!(
            payloads,
            (0..8).map(|rank| vec![rank; 3]).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_failure_of_one_rank_reaches_all_and_the_group_goes_on() {
    let results = on_ranks(4, |mut ranks| {
        let mine = if ranks.rank() == 2 {
            Err(Error::Cluster(ClusterError::World(3)))
        } else {
            Ok(((), Vec::new()))
        };
        let first = ranks.agree("plan", mine, TIMEOUT);
        let second = ranks.barrier("again", TIMEOUT);
        (first, second)
    });
    for (rank, (first, second)) in results.into_iter().enumerate() {
        match first.expect_err("rank 2 failed") {
            Error::Cluster(ClusterError::World(3)) => assert_eq!(rank, 2),
            Error::RanksFailed { step, failures } => {
                assert_eq!(step, "plan");
                assert_eq!(
                    failures,
                    [(2, Error::Cluster(ClusterError::World(3)).to_string())]
                );
            }
            other => panic!("{other}"),
        }
        second.expect("the ranks are still in step");
    }
}

/// One thread has both ranks, so that rank 1 is late however long the thread waits for a core.
#[test]
fn after_a_missing_rank_every_later_step_fails_at_once() {
    let mut ranks: Vec<_> = local::groups(2).into_iter().map(Collective::new).collect();
    let error = ranks[0]
        .barrier("late", Duration::from_millis(50))
        .expect_err("rank 1 is late");
    assert!(
        matches!(&error, Error::RanksMissing { ranks, .. } if *ranks == [1]),
        "{error}"
    );
    let started = std::time::Instant::now();
    let error = ranks[0].barrier("next", TIMEOUT).expect_err("out of step");
    assert!(
        matches!(error, Error::Aborted { cause: Some(_) }),
        "{error}"
    );
    let error = ranks[1].barrier("late", TIMEOUT).expect_err("given up");
    assert!(matches!(error, Error::RanksMissing { .. }), "{error}");
    assert!(started.elapsed() < TIMEOUT / 2);
}

/// A rank that contributes too much gets an error with the limit, and the other ranks get that rank's failure. No rank gets a
/// part of the bytes.
#[test]
fn too_much_is_an_error_with_the_limit_and_the_group_goes_on() {
    let results = on_ranks(3, too_much);
    for (rank, result) in results.into_iter().enumerate() {
        check_too_much(rank, result);
    }
}

type Outcome = Result<Vec<Vec<u8>>, Error>;

/// Returns the results if rank 1 contributes too much, and then the results if every rank contributes the most bytes.
pub fn too_much(mut ranks: Collective) -> (Outcome, Outcome) {
    let more = usize::from(ranks.rank() == 1) * 70_000;
    let first = ranks.all_gather("big", &vec![7; more], TIMEOUT);
    let second = ranks.all_gather("full", &vec![8; MAX_CONTRIBUTION_BYTES], TIMEOUT);
    (first, second)
}

pub fn check_too_much(rank: usize, (first, second): (Outcome, Outcome)) {
    match first.expect_err("too much on rank 1") {
        Error::ContributionTooLong {
            step: "big",
            bytes: 70_000,
            limit: 65_536,
        } => assert_eq!(rank, 1),
        Error::RanksFailed { failures, .. } => {
            assert_ne!(rank, 1);
            assert!(
                matches!(&failures[..], [(1, text)] if text.contains("70000") && text.contains("65536")),
                "{failures:?}"
            );
        }
        other => panic!("{other}"),
    }
    let full = second.expect("the ranks are still in step");
    assert_eq!(full, [[8; MAX_CONTRIBUTION_BYTES]; 3]);
}

/// Stops rank `stops` in a step that rank 2 does not enter. Returns the errors of ranks 0 and 1, and the duration of their
/// waits.
pub fn stopped(
    mut ranks: Collective,
    stops: u32,
    end: &std::sync::Barrier,
) -> Option<(Error, Duration)> {
    ranks.barrier("before", TIMEOUT).expect("all ranks come");
    if ranks.rank() == 2 {
        end.wait();
        return None;
    }
    let (rank, stop) = (ranks.rank(), ranks.stop());
    let started = std::time::Instant::now();
    let error = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            if rank == stops {
                stop.set();
            }
        });
        ranks
            .barrier("step", TIMEOUT)
            .expect_err("a rank is stopped")
    });
    let took = started.elapsed();
    ranks.begin();
    let next = ranks.barrier("next", TIMEOUT).expect_err("out of step");
    assert!(matches!(next, Error::Aborted { .. }), "{next}");
    end.wait();
    Some((error, took))
}

pub fn check_stopped(stops: u32, results: Vec<Option<(Error, Duration)>>) {
    for (rank, (error, took)) in (0..).zip(results.into_iter().flatten()) {
        assert!(took < TIMEOUT / 2, "rank {rank}: {took:?}");
        match error {
            Error::Aborted { cause: None } => assert_eq!(rank, stops),
            Error::RanksFailed { step, failures } => {
                assert_ne!(rank, stops);
                assert_eq!(step, "step");
                let expected = [(stops, "Communicator::abort was called".to_owned())];
                assert_eq!(failures, expected);
            }
            other => panic!("rank {rank}: {other}"),
        }
    }
}

#[test]
fn a_stop_ends_a_step_on_all_ranks() {
    for stops in [0, 1] {
        let end = std::sync::Barrier::new(3);
        check_stopped(stops, on_ranks(3, |ranks| stopped(ranks, stops, &end)));
    }
}
