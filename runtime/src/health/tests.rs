//! Tests of the causes that a communicator returns.

use super::*;
use crate::bootstrap::local;

fn health() -> Health {
    group(&[0], Ancestors::default())
}

fn group(job_ranks: &[u32], ancestors: Ancestors) -> Health {
    let ranks = Collective::new(local::groups(job_ranks.len() as u32).remove(0));
    Health::new(ranks, job_ranks, ancestors)
}

/// One group has ranks 2 and 0 of the job, the other group has ranks 2 and 1. Rank 0 is lost.
#[test]
fn the_loss_of_a_rank_ends_groups_with_it_and_groups_without_it() {
    let parent = group(&[2, 0, 1], Ancestors::default());
    let with_lost = group(&[2, 0], parent.for_groups());
    let without_lost = group(&[2, 1], parent.for_groups());
    let inner = group(&[1], without_lost.for_groups());
    for health in [&with_lost, &without_lost, &inner] {
        assert!(!health.poll());
        health.check().expect("usable");
    }
    parent.lost.set(1).expect("the first loss");
    assert!(with_lost.poll());
    let error = with_lost.check().expect_err("a member is lost");
    assert!(matches!(error, Error::RankLost { rank: 1, .. }), "{error}");
    for health in [&without_lost, &inner] {
        // The watchdog goes on, so that other members learn of the failure.
        assert!(!health.poll());
        let error = health.ensure_usable().expect_err("rank 0 of the job");
        let Error::Aborted { cause: Some(cause) } = &error else {
            panic!("{error}");
        };
        assert!(matches!(**cause, Error::RankLost { rank: 0, .. }));
        assert!(error.to_string().contains("rank 0 is lost"), "{error}");
    }
}

#[test]
fn the_first_error_is_the_cause_and_later_errors_repeat_it() {
    let health = health();
    health.ensure_usable().expect("usable");
    health.fail(Error::RankLost {
        rank: 3,
        is_thread: false,
    });
    health.fail(Error::RankLost {
        rank: 5,
        is_thread: false,
    });
    let first = health.ensure_usable().expect_err("rank 3 is lost");
    assert!(matches!(first, Error::RankLost { rank: 3, .. }), "{first}");
    let later = health.ensure_usable().expect_err("rank 3 is lost");
    assert!(matches!(&later, Error::Aborted { cause: Some(_) }));
    let (first, later) = (first.to_string(), later.to_string());
    assert!(later.contains(&first), "{later}");
    assert!(health.check().is_err_and(|e| e.to_string() == first));
}

#[test]
fn a_cause_that_was_checked_is_not_returned_again() {
    let health = health();
    health.check().expect("usable");
    health.fail(Error::RankLost {
        rank: 3,
        is_thread: false,
    });
    health.check().expect_err("rank 3 is lost");
    let next = health.ensure_usable().expect_err("rank 3 is lost");
    assert!(matches!(next, Error::Aborted { cause: Some(_) }), "{next}");
}

#[test]
fn an_abort_is_its_own_cause() {
    let health = health();
    health.fail(Error::Aborted { cause: None });
    for _ in 0..2 {
        let error = health.ensure_usable().expect_err("aborted");
        assert!(matches!(error, Error::Aborted { cause: None }), "{error}");
    }
}
