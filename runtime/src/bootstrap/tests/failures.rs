//! Tests of ranks that leave, are late, or are in different steps.

use super::super::failure::{ReportedFailure, StepFailure};
use super::super::rendezvous::client::{connect, not_to_itself};
use super::super::step_frames::contributions_in;
use super::*;
use crate::error::RendezvousError;
use std::net::TcpStream;

#[test]
fn all_ranks_learn_at_once_which_rank_left() {
    let started = Instant::now();
    let results = on_ranks(4, |mut ranks| {
        if ranks.rank() == 2 {
            None
        } else {
            Some(ranks.barrier("step", TIMEOUT))
        }
    });
    for result in results.into_iter().flatten() {
        let error = result.expect_err("rank 2 left");
        assert!(
            matches!(
                error,
                Error::RankLeft {
                    rank: 2,
                    step: "step"
                }
            ),
            "{error}"
        );
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn all_learn_when_rank_0_left() {
    let results = on_ranks(3, |mut ranks| {
        if ranks.rank() == 0 {
            None
        } else {
            Some(ranks.barrier("step", TIMEOUT))
        }
    });
    for result in results.into_iter().flatten() {
        let error = result.expect_err("rank 0 left");
        assert!(matches!(error, Error::RankLeft { rank: 0, .. }), "{error}");
    }
}

/// Ranks that are in no step also learn of a leaving rank. After that they learn of the next leaving rank, and a step
/// fails.
#[test]
fn ranks_in_no_step_learn_which_rank_left() {
    let hears = |ranks: &mut Collective, all: &[u32]| {
        let end = Instant::now() + TIMEOUT;
        while ranks.left() != all {
            assert_eq!(ranks.lost(), None);
            assert!(Instant::now() < end, "{:?} have left", ranks.left());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let first_was_heard = std::sync::Barrier::new(3);
    on_ranks(4, |mut ranks| {
        if ranks.rank() == 2 {
            ranks.leave();
            return;
        }
        hears(&mut ranks, &[2]);
        first_was_heard.wait();
        if ranks.rank() == 0 {
            return;
        }
        hears(&mut ranks, &[0, 2]);
        let error = ranks.barrier("step", TIMEOUT).expect_err("ranks have left");
        assert!(matches!(error, Error::RankLeft { .. }), "{error}");
    });
}

/// Ranks learn of a failed call both outside and inside a step, and steps are still completed.
#[test]
fn ranks_learn_whose_call_has_failed() {
    for failing in 0..3 {
        let is_heard = std::sync::Barrier::new(3);
        on_ranks(3, |mut ranks| {
            let rank = ranks.rank();
            if rank == failing {
                ranks.report_failed();
            } else if rank == (failing + 1) % 3 {
                let end = Instant::now() + TIMEOUT;
                // Only rank 0 passes the report on, and rank 0 does so in the step.
                while rank == 0 && ranks.failed().is_none() {
                    assert_eq!(ranks.lost(), None);
                    assert!(Instant::now() < end, "no report");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            ranks.barrier("step", TIMEOUT).expect("all ranks take part");
            assert_eq!((ranks.failed(), ranks.lost()), (Some(failing), None));
            is_heard.wait();
        });
    }
}

#[test]
fn all_ranks_learn_which_ranks_are_late() {
    let others_have_ended = std::sync::Barrier::new(3);
    let results = on_ranks(3, |mut ranks| {
        let is_late = ranks.rank() == 1;
        if is_late {
            others_have_ended.wait();
        }
        let result = ranks.barrier("step", SHORT);
        if !is_late {
            others_have_ended.wait();
        }
        result
    });
    for result in results {
        let error = result.expect_err("rank 1 is late");
        assert!(
            matches!(&error, Error::RanksMissing { ranks, step: "step", .. } if *ranks == [1]),
            "{error}"
        );
    }
}

#[test]
fn different_steps_are_an_error_everywhere() {
    let results = on_ranks(3, |mut ranks| {
        let step = if ranks.rank() == 2 {
            "planning"
        } else {
            "barrier"
        };
        ranks.barrier(step, TIMEOUT)
    });
    let errors: Vec<_> = results
        .into_iter()
        .map(|result| result.expect_err("the steps differ"))
        .collect();
    assert!(
        matches!(&errors[0], Error::Protocol { peer: Peer::Rank(2), source: ProtocolFault::WrongStep { found }, .. } if found == "planning"),
        "{}",
        errors[0]
    );
    for error in &errors[1..] {
        assert!(
            matches!(error, Error::RanksFailed { failures, .. } if failures[0].0 == 2),
            "{error}"
        );
    }
}

#[test]
fn no_rank_0_is_an_error_within_the_deadline() {
    let port = free_port();
    let started = Instant::now();
    let error = connect_ranks(&Job {
        timeout: SHORT,
        ..job(1, 2, port)
    })
    .err()
    .expect("nobody listens");
    assert!(
        matches!(error, Error::Rendezvous(RendezvousError::Connect { .. })),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains("Nothing listens there"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

/// Returns a listener that accepts no further connection, like an address behind which all packets are dropped.
fn black_hole() -> (TcpListener, Vec<TcpStream>, std::net::SocketAddr) {
    let (listener, _) = listener();
    let address = listener.local_addr().expect("an address");
    // Linux drops connection requests when the queue of unaccepted connections is full.
    rustix::net::listen(&listener, 0).expect("a queue of one");
    let connect = || TcpStream::connect_timeout(&address, SHORT);
    let waiting: Vec<_> = std::iter::from_fn(|| connect().ok()).take(8).collect();
    assert!(waiting.len() < 8, "connections are still taken");
    (listener, waiting, address)
}

#[test]
fn an_address_that_drops_packets_leaves_time_for_the_others() {
    let (_open, _waiting, hole) = black_hole();
    let (_listener, port) = listener();
    let rank_0 = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let started = Instant::now();
    connect(&[hole, hole, rank_0], started + TIMEOUT).expect("rank 0 is reached");
    assert!(started.elapsed() < TIMEOUT / 2, "{:?}", started.elapsed());
    let started = Instant::now();
    connect(&[hole, rank_0], started + TIMEOUT / 10)
        .expect("rank 0 is reached in half of the time");

    let error = connect(&[hole, hole], Instant::now() + SHORT).err();
    let text = error.expect("nobody is reached").to_string();
    assert_eq!(text.matches(&hole.to_string()).count(), 2, "{text}");
}

#[test]
fn a_connection_to_itself_is_none_to_rank_0() {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&stream, &address).expect("a free port");
    connect(&stream, &address).expect("to itself");
    let error = not_to_itself(stream.into()).expect_err("nobody listens");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    let (listener, _) = listener();
    let address = listener.local_addr().expect("an address");
    let stream = TcpStream::connect(address).expect("connects");
    not_to_itself(stream).expect("another socket");
}

#[test]
fn a_name_that_cannot_be_looked_up_is_in_the_error() {
    let job = |rank| Job {
        host: "nohost.invalid".into(),
        timeout: SHORT,
        ..job(rank, 2, 29511)
    };
    for rank in [0, 1] {
        let error = connect_ranks(&job(rank))
            .err()
            .expect("there is no such host");
        assert!(
            matches!(error, Error::Rendezvous(RendezvousError::LookUp { .. })),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("\"nohost.invalid\""), "{text}");
        assert!(text.contains("Check the spelling"), "{text}");
        assert!(!text.contains("MKERNEL_PORT"), "{text}");
    }
}

#[test]
fn a_port_that_is_taken_is_an_error_of_rank_0() {
    let (_taken, port) = listener();
    let error = connect_ranks(&job(0, 2, port))
        .err()
        .expect("the port is taken");
    assert!(
        matches!(error, Error::Rendezvous(RendezvousError::Listen { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("uses the port"), "{error}");
}

/// A launcher can start rank 0 on another host than the host that `MASTER_ADDR` names.
#[test]
fn rank_0_reports_that_other_ranks_look_for_it_elsewhere() {
    let job = Job {
        // No host has an address of this block, which is for documentation.
        host: "192.0.2.1".into(),
        timeout: SHORT,
        ..job(0, 3, free_port())
    };
    let mut met = None;
    let log = logged(|| met = Some(connect_ranks(&job)));
    let error = met.and_then(Result::err).expect("nobody connects");
    let Error::Rendezvous(RendezvousError::Elsewhere { address, ranks, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!((address, &**ranks), (&job.address(), &[1, 2][..]));
    let text = error.to_string();
    assert!(text.contains("Set MASTER_ADDR on all ranks"), "{text}");
    let warned = log.lines().any(|line| {
        line.contains("WARN")
            && line.contains("does not have the address")
            && line.contains(address)
    });
    assert!(warned, "{log}");
}

#[test]
fn failures_survive_the_wire() {
    for (failure, reported) in [
        (
            StepFailure::Missing {
                ranks: vec![1, 5],
                refused: vec!["9.9.9.9: why".into()],
            },
            ReportedFailure::Missing(vec![1, 5]),
        ),
        (StepFailure::Left { rank: 3 }, ReportedFailure::Left(3)),
        (
            StepFailure::Protocol {
                rank: 2,
                fault: ProtocolFault::OtherJob,
            },
            ReportedFailure::Reported(2, ProtocolFault::OtherJob.to_string()),
        ),
    ] {
        let bytes = failure.encode();
        assert_eq!(StepFailure::decode(&bytes), Ok(reported));
        for end in 0..bytes.len() {
            assert_eq!(
                StepFailure::decode(&bytes[..end]),
                Err(ProtocolFault::Malformed)
            );
        }
    }
    assert_eq!(
        contributions_in(&[0; 9], 2),
        Err(ProtocolFault::Malformed),
        "a byte too many"
    );
}

/// Ranks that are connected get the error of rank 0.
#[test]
fn missing_ranks_are_named_on_every_rank() {
    let brief = |rank, port| Job {
        // This is long enough for a busy machine to start four threads.
        timeout: Duration::from_secs(2),
        ..job(rank, 6, port)
    };
    let (listener, port) = listener();
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let listener = &listener;
        let root = scope.spawn(move || accept_ranks(&brief(0, port), listener));
        let others = [1, 3, 5].map(|rank| scope.spawn(move || connect_ranks(&brief(rank, port))));
        std::iter::once(root)
            .chain(others)
            .map(|rank| {
                rank.join()
                    .expect("no panic")
                    .err()
                    .expect("two are missing")
            })
            .collect()
    });
    for error in errors {
        assert!(
            matches!(&error, Error::RanksMissing { ranks, step: "rendezvous", .. } if *ranks == [2, 4]),
            "{error}"
        );
    }
}

/// A restarted process can take the place of its predecessor.
#[test]
fn a_rank_that_left_before_all_had_met_may_come_again() {
    let (listener, port) = listener();
    std::thread::scope(|scope| {
        let root = scope.spawn(|| accept_ranks(&job(0, 3, port), &listener));
        let brief = Job {
            timeout: SHORT,
            ..job(1, 3, port)
        };
        // A rank gives up some time after its own deadline, since rank 0 may still report the missing ranks.
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
        super::strangers::present(&mut stream, &brief);
        std::thread::sleep(SHORT);
        drop(stream);
        let again = scope.spawn(move || connect_ranks(&job(1, 3, port)));
        std::thread::sleep(SHORT);
        let last = scope.spawn(move || connect_ranks(&job(2, 3, port)));
        for rank in [root, again, last] {
            rank.join().expect("no panic").expect("the ranks connect");
        }
    });
}

/// 300 ranks do not fit into a count of one byte.
#[test]
fn many_missing_ranks_are_all_named() {
    let ranks: Vec<u32> = (1..300).collect();
    let bytes = StepFailure::Missing {
        ranks: ranks.clone(),
        refused: Vec::new(),
    }
    .encode();
    assert_eq!(
        StepFailure::decode(&bytes),
        Ok(ReportedFailure::Missing(ranks))
    );
}
