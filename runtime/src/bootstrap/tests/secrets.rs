//! Jobs with a secret.

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
fn ranks_that_know_it_meet_and_work() {
    let read = on_jobs(3, |rank, port| with(SECRET, job(rank, 3, port)), work);
    for (rank, read) in (0..).zip(read) {
        assert_eq!(read, expected_work(rank, 3));
    }
}

/// What ranks 0 and 1 get, where they know different secrets, or one knows none; rank 0 names the other as missing.
fn told(root: impl Fn(Job) -> Job + Sync, other: impl Fn(Job) -> Job + Sync) -> [String; 2] {
    let jobs = |rank, port| {
        let brief = Job {
            timeout: Duration::from_secs(1),
            ..job(rank, 2, port)
        };
        if rank == 0 { root(brief) } else { other(brief) }
    };
    let mut met = meet_all(2, jobs).into_iter();
    let mut error = || {
        met.next()
            .expect("two ranks")
            .err()
            .expect("they don't meet")
    };
    let missing = error();
    assert!(
        matches!(&missing, Error::RanksMissing { ranks, .. } if *ranks == [1]),
        "{missing}"
    );
    [missing.to_string(), crate::error::with_causes(&error())]
}

#[test]
fn who_does_not_know_it_is_kept_out_and_told_why() {
    let right = |job| with(SECRET, job);
    let check = |told: [String; 2], root: &str, other: &str| {
        let refused = format!("rank 0 refused 127.0.0.1: {root}");
        assert!(told[0].contains(&refused), "{}", told[0]);
        assert!(told[1].contains(other), "{}", told[1]);
    };
    let reason = "it does not know this job's secret";
    let told_wrong = told(right, |job| with(b"incorrect horse battery", job));
    check(told_wrong, reason, reason);
    let hung_up = "it hung up when it was asked for a proof; set MKERNEL_SECRET";
    check(told(right, |job| job), hung_up, "asks for a secret");
    // Nor does a rank that has a secret trust a rank 0 that has none.
    check(told(|job| job, right), hung_up, "it has no secret");
}

/// All bytes of a meeting of two ranks: those of rank 1, and those of rank 0.
fn recorded() -> (Vec<u8>, Vec<u8>) {
    let (front, front_port) = listener();
    front.set_nonblocking(false).expect("blocking");
    let (listener, port) = listener();
    std::thread::scope(|scope| {
        let root = scope.spawn(|| gather(&with(SECRET, job(0, 2, port)), &listener));
        let rank = scope.spawn(move || meet(&with(SECRET, job(1, 2, front_port))));
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
            // Dropped, so that the copies end.
            drop(end.join().expect("no panic").expect("the ranks meet"));
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
fn what_was_overheard_is_of_no_use() {
    let (rank_said, root_said) = recorded();
    for said in [&rank_said, &root_said] {
        assert!(!said.windows(SECRET.len()).any(|part| part == SECRET));
        assert!(said.len() > 60, "there was a conversation");
    }
    let (listener, port) = listener();
    std::thread::scope(|scope| {
        let root = scope.spawn(|| gather(&with(SECRET, job(0, 2, port)), &listener));
        // Somebody who says again what rank 1 said: it is asked for a proof, and its old one is none.
        let mut stream = connect(port);
        stream.write_all(&rank_said).expect("sent");
        let kinds = [next_frame(&mut stream).kind, next_frame(&mut stream).kind];
        assert_eq!(format!("{kinds:?}"), "[Challenge, Refused]");
        meet(&with(SECRET, job(1, 2, port))).expect("the real rank 1");
        root.join().expect("no panic").expect("the ranks meet");
    });
    // Somebody who says again what rank 0 said.
    let (listener, port) = super::listener();
    listener.set_nonblocking(false).expect("blocking");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("rank 1 connects");
            stream.write_all(&root_said).expect("sent");
            // Until it hangs up.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = meet(&with(SECRET, job(1, 2, port)))
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
