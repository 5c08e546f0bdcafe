//! Tests of the causes that a communicator returns.

use super::*;
use crate::bootstrap::local;

fn health() -> Health {
    Health::new(Collective::new(local::groups(1).remove(0)))
}

#[test]
fn the_first_error_is_the_cause_and_later_ones_repeat_it() {
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
