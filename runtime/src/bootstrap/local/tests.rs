//! Tests of ranks that are threads of one process.

use super::*;
use crate::testing::in_threads;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(20);

fn on_ranks<T: Send>(world: u32, body: impl Fn(LocalGroup) -> T + Sync) -> Vec<T> {
    in_threads(groups(world), body)
}

#[test]
fn many_rounds_stay_in_step() {
    let seen = on_ranks(8, |mut group| {
        (0..200u32)
            .map(|round| {
                let mine = (round * 8 + group.rank()).to_le_bytes();
                group
                    .all_gather(&mine, StepWait::new("round", TIMEOUT))
                    .expect("all ranks come")
            })
            .collect::<Vec<_>>()
    });
    for rounds in seen {
        for (round, all) in (0u32..).zip(rounds) {
            let expected: Vec<_> = (0..8)
                .map(|rank| (round * 8 + rank).to_le_bytes().to_vec())
                .collect();
            assert_eq!(all, expected);
        }
    }
}

#[test]
fn a_rank_that_leaves_is_named_at_once() {
    let started = Instant::now();
    let results = on_ranks(4, |mut group| {
        if group.rank() == 3 {
            None
        } else {
            Some(group.all_gather(&[], StepWait::new("plan", TIMEOUT)))
        }
    });
    for result in results.into_iter().flatten() {
        let error = result.expect_err("rank 3 is gone");
        assert!(
            matches!(
                error,
                Error::RankLeft {
                    rank: 3,
                    step: "plan"
                }
            ),
            "{error}"
        );
    }
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_rank_whose_thread_has_panicked_is_lost_and_has_not_left() {
    let mut all = groups(3);
    let (mut first, second, mut third) = (all.remove(0), all.remove(0), all.remove(0));
    first.leave();
    let panicked = std::thread::spawn(move || {
        let _second = second;
        std::panic::resume_unwind(Box::new("it panics"));
    });
    panicked.join().expect_err("it has panicked");
    assert_eq!((third.left(), third.lost()), (vec![0], Some(1)));
}

#[test]
fn the_first_failed_call_is_known_to_all_ranks() {
    let mut all = groups(3);
    all[1].report_failed();
    all[2].report_failed();
    all.iter()
        .for_each(|ranks| assert_eq!(ranks.failed(), Some(1)));
}

#[test]
fn different_steps_are_an_error_on_both_sides() {
    let results = on_ranks(2, |mut group| {
        let step = if group.rank() == 0 { "plan" } else { "barrier" };
        group.all_gather(&[], StepWait::new(step, TIMEOUT))
    });
    for result in results {
        let error = result.expect_err("the steps differ");
        assert!(
            matches!(
                error,
                Error::Protocol {
                    source: ProtocolFault::WrongStep { .. },
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn descriptors_of_all_ranks_arrive_and_are_open() {
    let texts = on_ranks(4, |mut group| {
        let mut file = tempfile::tempfile().expect("a temporary file");
        write!(file, "rank {}", group.rank()).expect("written");
        let fds = group
            .exchange_fds(file.as_fd(), &StepWait::new("handles", TIMEOUT))
            .expect("all ranks come");
        drop(file);
        fds.into_iter()
            .map(|fd| {
                // The duplicates share one file offset, so the file is read at an explicit offset.
                let mut text = [0; 6];
                std::fs::File::from(fd?).read_exact_at(&mut text, 0).ok()?;
                let text = String::from_utf8_lossy(&text).into_owned();
                Some(text)
            })
            .collect::<Vec<_>>()
    });
    for (rank, texts) in texts.into_iter().enumerate() {
        for (peer, text) in texts.into_iter().enumerate() {
            assert_eq!(text, (peer != rank).then(|| format!("rank {peer}")));
        }
    }
}
