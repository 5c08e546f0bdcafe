//! Tests of jobs with a secret.

use super::strangers::{connect, next_frame};
use super::*;
use std::io::Read;
use std::net::TcpStream;

const SECRET: &[u8] = b"correct horse battery staple";

fn with(secret: &[u8], job: Job) -> Job {
    Job {
        secret: Some(Secret::new(secret).expect("long enough")),
        ..job
    }
}

#[test]
fn ranks_that_know_the_secret_meet_and_work() {
    let read = on_jobs(3, |rank, port| with(SECRET, job(rank, 3, port)), work);
    for (rank, read) in (0..).zip(read) {
        assert_eq!(read, expected_work(rank, 3));
    }
}

/// Returns the errors of ranks 0 and 1 if they have different secrets, or if only one rank has a secret. Rank 0 reports rank 1
/// as missing.
fn errors(root: impl Fn(Job) -> Job + Sync, other: impl Fn(Job) -> Job + Sync) -> [String; 2] {
    let jobs = |rank, port| {
        let brief = Job {
            timeout: Duration::from_secs(1),
            ..job(rank, 2, port)
        };
        if rank == 0 { root(brief) } else { other(brief) }
    };
    let mut met = connect_all(2, jobs).into_iter();
    let mut error = || {
        met.next()
            .expect("two ranks")
            .err()
            .expect("they do not connect")
    };
    let missing = error();
    assert!(
        matches!(&missing, Error::RanksMissing { ranks, .. } if *ranks == [1]),
        "{missing}"
    );
    [missing.to_string(), crate::error::with_causes(&error())]
}

#[test]
fn a_rank_without_the_secret_is_refused_with_the_reason() {
    let right = |job| with(SECRET, job);
    let check = |errors: [String; 2], root: &str, other: &str| {
        let refused = format!("Rank 0 refused 127.0.0.1: {root}");
        assert!(errors[0].contains(&refused), "{}", errors[0]);
        assert!(errors[1].contains(other), "{}", errors[1]);
    };
    let reason = "it does not know this job's secret";
    let wrong = errors(right, |job| with(b"incorrect horse battery", job));
    check(wrong, reason, reason);
    let hung_up = "it closed the connection when it was asked for a proof; set MKERNEL_SECRET";
    check(errors(right, |job| job), hung_up, "requires a secret");
    // A rank with a secret also refuses a rank 0 without a secret.
    check(errors(|job| job, right), hung_up, "it has no secret");
}

/// Returns all bytes of a rendezvous of two ranks: the bytes of rank 1, and the bytes of rank 0.
fn recorded() -> (Vec<u8>, Vec<u8>) {
    let (front, front_port) = listener();
    front.set_nonblocking(false).expect("blocking");
    let (listener, port) = listener();
    std::thread::scope(|scope| {
        let root = scope.spawn(|| accept_ranks(&with(SECRET, job(0, 2, port)), &listener));
        let rank = scope.spawn(move || connect_ranks(&with(SECRET, job(1, 2, front_port))));
        let (near, _) = front.accept().expect("rank 1 connects");
        let far = connect(port);
        let copies = [(&near, &far), (&far, &near)].map(|(from, to)| {
            let (mut from, mut to) = (
                from.try_clone().expect("a handle"),
                to.try_clone().expect("a handle"),
            );
            scope.spawn(move || copy(&mut from, &mut to))
        });
        for end in [root, rank] {
            // The groups are dropped, so that the copying threads end.
            drop(end.join().expect("no panic").expect("the ranks connect"));
        }
        let [up, down] = copies.map(|copy| copy.join().expect("no panic"));
        (up, down)
    })
}

fn copy(from: &mut TcpStream, to: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        all.extend_from_slice(&buffer[..count]);
        let _ = to.write_all(&buffer[..count]);
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    all
}

#[test]
fn recorded_messages_cannot_be_replayed() {
    let (rank_said, root_said) = recorded();
    for said in [&rank_said, &root_said] {
        assert!(!said.windows(SECRET.len()).any(|part| part == SECRET));
        assert!(said.len() > 60, "there was a transcript");
    }
    let (listener, port) = listener();
    std::thread::scope(|scope| {
        let root = scope.spawn(|| accept_ranks(&with(SECRET, job(0, 2, port)), &listener));
        // This connection repeats the messages of rank 1. Rank 0 asks for a new proof, and the old proof is not valid.
        let mut stream = connect(port);
        stream.write_all(&rank_said).expect("sent");
        let kinds = [next_frame(&mut stream).kind, next_frame(&mut stream).kind];
        assert_eq!(format!("{kinds:?}"), "[Challenge, Refused]");
        connect_ranks(&with(SECRET, job(1, 2, port))).expect("the real rank 1");
        root.join().expect("no panic").expect("the ranks connect");
    });
    // This listener repeats the messages of rank 0.
    let (listener, port) = super::listener();
    listener.set_nonblocking(false).expect("blocking");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("rank 1 connects");
            stream.write_all(&root_said).expect("sent");
            // The read ends when the connection is closed.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = connect_ranks(&with(SECRET, job(1, 2, port)))
            .err()
            .expect("no rank 0");
        assert!(
            matches!(
                &error,
                Error::Protocol {
                    source: ProtocolFault::WrongSecret,
                    ..
                }
            ),
            "{error}"
        );
    });
}
