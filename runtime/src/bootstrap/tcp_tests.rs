//! Processes and threads that meet over TCP: as they should, and as they shouldn't.

use super::super::Collective;
use super::super::meet::gather;
use super::super::wire::VERSION;
use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

const TIMEOUT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

fn job(rank: u32, world: u32, port: u16) -> Job {
    Job {
        rank,
        world,
        host: "127.0.0.1".into(),
        port,
        name: "test".into(),
        timeout: TIMEOUT,
    }
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("non-blocking");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

/// Runs `body` on `world` threads that meet over TCP; returns what each returned, by rank.
fn on_ranks<T: Send>(world: u32, body: impl Fn(Collective) -> T + Sync) -> Vec<T> {
    let (listener, port) = listener();
    std::thread::scope(|scope| {
        let (body, listener) = (&body, &listener);
        let threads: Vec<_> = (0..world)
            .map(|rank| {
                scope.spawn(move || {
                    let job = job(rank, world, port);
                    let group = if rank == 0 {
                        gather(&job, listener)
                    } else {
                        meet(&job)
                    };
                    body(Collective::new(group.expect("the ranks meet")))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic on a rank"))
            .collect()
    })
}

/// What a rank does in the tests: many steps, then descriptors. Returns what it read from the peers' files.
fn work(mut ranks: Collective) -> String {
    for round in 0..50u32 {
        let mine = (round * 8 + ranks.rank()).to_le_bytes();
        let all = ranks
            .all_gather("round", &mine, TIMEOUT)
            .expect("all ranks come");
        let expected: Vec<_> = (0..ranks.world())
            .map(|rank| (round * 8 + rank).to_le_bytes().to_vec())
            .collect();
        assert_eq!(all, expected);
    }
    let mut file = tempfile::tempfile().expect("a temporary file");
    write!(file, "{}", ranks.rank()).expect("written");
    let fds = ranks
        .exchange_fds(file.as_fd(), TIMEOUT)
        .expect("all ranks come");
    ranks.barrier("end", TIMEOUT).expect("all ranks come");
    fds.into_iter()
        .map(|fd| {
            let Some(fd) = fd else { return "-".to_owned() };
            // All ranks share the place up to which a file was read, so none is used.
            let mut text = [0];
            std::fs::File::from(fd)
                .read_exact_at(&mut text, 0)
                .expect("readable");
            printable(&text)
        })
        .collect()
}

fn expected_work(rank: u32, world: u32) -> String {
    (0..world)
        .map(|peer| {
            if peer == rank {
                "-".to_owned()
            } else {
                peer.to_string()
            }
        })
        .collect()
}

#[test]
fn eight_threads_meet_and_work() {
    for (rank, read) in (0..).zip(on_ranks(8, work)) {
        assert_eq!(read, expected_work(rank, 8));
    }
}

/// Not a test: what a process of `eight_processes_meet_and_work` runs, with the variables that torchrun sets.
#[test]
#[ignore = "started by other tests, as a process of its own"]
fn child() {
    let place = crate::env::place().expect("variables are set");
    let meeting = place.meeting.expect("more than one rank");
    let group = meet(&Job {
        rank: place.rank,
        world: place.world,
        host: meeting.host,
        port: meeting.port,
        name: meeting.job,
        timeout: crate::env::timeout().expect("a timeout"),
    });
    let mut ranks = Collective::new(group.expect("the ranks meet"));
    if std::env::var_os("DIE").is_some() {
        ranks.barrier("before", TIMEOUT).expect("all ranks come");
        std::process::abort();
    }
    println!("read {}", work(ranks));
}

fn start_child(rank: u32, world: u32, port: u16, dies: bool) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().expect("the test program"));
    command.args([
        "--exact",
        "bootstrap::tcp::tests::child",
        "--ignored",
        "--nocapture",
    ]);
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world.to_string());
    command
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MKERNEL_PORT", port.to_string());
    command
        .env("TORCHELASTIC_RUN_ID", "test")
        .env("MKERNEL_TIMEOUT_MS", "20000");
    if dies {
        command.env("DIE", "1");
    }
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process")
}

#[test]
fn eight_processes_meet_and_work() {
    // The port is free when rank 0 binds it, unless somebody takes it in between: then rank 0 says so.
    let port = listener().1;
    let children: Vec<_> = (0..8)
        .map(|rank| start_child(rank, 8, port, false))
        .collect();
    for (rank, child) in (0..).zip(children) {
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "rank {rank}: {text}");
        assert!(
            text.contains(&format!("read {}", expected_work(rank, 8))),
            "rank {rank}: {text}"
        );
    }
}

#[test]
fn a_process_that_dies_is_named_at_once() {
    let (listener, port) = listener();
    let mut child = start_child(1, 2, port, true);
    let mut ranks = Collective::new(gather(&job(0, 2, port), &listener).expect("the ranks meet"));
    ranks.barrier("before", TIMEOUT).expect("all ranks come");
    let started = Instant::now();
    let error = ranks.barrier("after", TIMEOUT).expect_err("rank 1 is dead");
    assert!(
        matches!(
            error,
            Error::RankLeft {
                rank: 1,
                step: "after"
            }
        ),
        "{error}"
    );
    assert!(started.elapsed() < Duration::from_secs(10));
    child.wait().expect("it ended");
}

#[test]
fn all_learn_at_once_who_left() {
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

#[test]
fn all_learn_who_is_late() {
    let results = on_ranks(3, |mut ranks| {
        if ranks.rank() == 1 {
            std::thread::sleep(2 * SHORT);
        }
        ranks.barrier("step", SHORT)
    });
    for result in results {
        let error = result.expect_err("rank 1 sleeps");
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

/// Connects, sends `bytes`, and returns all that comes back.
fn speak(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream.write_all(bytes).expect("sent");
    let mut answer = Vec::new();
    // A reset is as good an end as any.
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn hello(rank: u32, world: u32, name: &str) -> Vec<u8> {
    let mut payload = [rank.to_le_bytes(), world.to_le_bytes()].concat();
    put_string(&mut payload, name.as_bytes());
    Frame {
        kind: Kind::Hello,
        nonce: Nonce::default(),
        payload,
    }
    .encode()
}

#[test]
fn strangers_are_refused_with_a_reason_and_the_ranks_still_meet() {
    let (listener, port) = listener();
    let mut versioned = hello(1, 2, "test");
    versioned[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let mut huge = hello(1, 2, "test");
    huge[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    let not_hello = Frame {
        kind: Kind::Offer,
        nonce: Nonce::default(),
        payload: Vec::new(),
    }
    .encode();
    let strangers: Vec<(Vec<u8>, &str)> = vec![
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "does not speak"),
        (versioned, "version 2"),
        (huge, "at most"),
        (not_hello, "malformed"),
        (hello(1, 2, "another job"), "another job"),
        (hello(1, 4, "test"), "WORLD_SIZE 4"),
        (hello(0, 2, "test"), "rank 0 of 2"),
        (hello(7, 2, "test"), "rank 7 of 2"),
        (hello(1, 2, "test")[..20].to_vec(), ""),
    ];
    std::thread::scope(|scope| {
        let silent = TcpStream::connect(("127.0.0.1", port)).expect("connects");
        let root = scope.spawn(|| gather(&job(0, 2, port), &listener));
        for (bytes, reason) in strangers {
            if reason.is_empty() {
                // Half a message, then gone.
                TcpStream::connect(("127.0.0.1", port))
                    .expect("connects")
                    .write_all(&bytes)
                    .expect("sent");
                continue;
            }
            let answer = speak(port, &bytes);
            let (frame, _) = Frame::decode(&answer)
                .expect("our protocol")
                .expect("a frame");
            assert_eq!(frame.kind, Kind::Refused);
            assert!(
                printable(&frame.payload).contains(reason),
                "{reason}: {}",
                printable(&frame.payload)
            );
        }
        let joined = meet(&job(1, 2, port)).expect("the real rank 1");
        let root = root.join().expect("no panic").expect("the ranks meet");
        drop((silent, joined, root));
    });
}

#[test]
fn the_second_process_with_a_rank_is_refused() {
    let (listener, port) = listener();
    let brief = Duration::from_secs(1);
    std::thread::scope(|scope| {
        let root = scope.spawn(move || {
            gather(
                &Job {
                    timeout: brief,
                    ..job(0, 3, port)
                },
                &listener,
            )
        });
        let first = scope.spawn(move || {
            meet(&Job {
                timeout: brief,
                ..job(1, 3, port)
            })
        });
        std::thread::sleep(SHORT);
        let error = meet(&job(1, 3, port))
            .err()
            .expect("rank 1 is there already");
        assert!(
            matches!(
                &error,
                Error::Protocol {
                    source: ProtocolFault::Refused { .. },
                    ..
                }
            ),
            "{error}"
        );
        let error = root
            .join()
            .expect("no panic")
            .err()
            .expect("rank 2 never came");
        assert!(
            matches!(&error, Error::RanksMissing { ranks, .. } if *ranks == [2]),
            "{error}"
        );
        // Rank 1 was taken in, but there was no job to be welcomed to.
        let error = first
            .join()
            .expect("no panic")
            .err()
            .expect("rank 0 gave up");
        assert!(matches!(&error, Error::Connect { .. }), "{error}");
    });
}

#[test]
fn no_rank_0_is_an_error_within_the_deadline() {
    let port = listener().1;
    let started = Instant::now();
    let error = meet(&Job {
        timeout: SHORT,
        ..job(1, 2, port)
    })
    .err()
    .expect("nobody listens");
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_port_that_is_taken_is_an_error_of_rank_0() {
    let (_taken, port) = listener();
    let error = meet(&job(0, 2, port)).err().expect("the port is taken");
    assert!(matches!(error, Error::Listen { .. }), "{error}");
}

#[test]
fn another_service_at_the_port_is_told_from_rank_0() {
    let (listener, port) = listener();
    listener.set_nonblocking(false).expect("blocking");
    let service = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(b"220 smtp ready\r\n").expect("sent");
        std::thread::sleep(SHORT);
    });
    let error = meet(&job(1, 2, port)).err().expect("no rank 0");
    assert!(
        matches!(
            &error,
            Error::Protocol {
                source: ProtocolFault::NotMkernel,
                ..
            }
        ),
        "{error}"
    );
    service.join().expect("no panic");
}

#[test]
fn garbage_from_a_rank_fails_the_step_on_all() {
    let (listener, port) = listener();
    std::thread::scope(|scope| {
        let root = scope.spawn(|| {
            let mut ranks =
                Collective::new(gather(&job(0, 3, port), &listener).expect("the ranks meet"));
            ranks.barrier("step", TIMEOUT)
        });
        let honest = scope.spawn(move || {
            let mut ranks = Collective::new(meet(&job(1, 3, port)).expect("the ranks meet"));
            ranks.barrier("step", TIMEOUT)
        });
        // Rank 2 speaks the protocol until it is welcomed, then sends a frame that lies about its contents.
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
        stream.write_all(&hello(2, 3, "test")).expect("sent");
        let mut welcome = [0; 28];
        stream.read_exact(&mut welcome).expect("welcomed");
        let (frame, _) = Frame::decode(&welcome)
            .expect("our protocol")
            .expect("a frame");
        let lie = Frame {
            kind: Kind::Offer,
            nonce: frame.nonce,
            payload: vec![0xff; 8],
        };
        stream.write_all(&lie.encode()).expect("sent");
        let error = root.join().expect("no panic").expect_err("garbage");
        assert!(
            matches!(
                &error,
                Error::Protocol {
                    peer: Peer::Rank(2),
                    source: ProtocolFault::Malformed,
                    ..
                }
            ),
            "{error}"
        );
        let error = honest.join().expect("no panic").expect_err("garbage");
        assert!(
            matches!(&error, Error::RanksFailed { failures, .. } if failures[0].0 == 2),
            "{error}"
        );
    });
}

#[test]
fn what_rank_0_says_survives_the_wire() {
    for (failure, heard) in [
        (
            Failure::Missing { ranks: vec![1, 5] },
            Heard::Missing(vec![1, 5]),
        ),
        (Failure::Left { rank: 3 }, Heard::Left(3)),
        (
            Failure::Protocol {
                rank: 2,
                fault: ProtocolFault::OtherJob,
            },
            Heard::Told(2, ProtocolFault::OtherJob.to_string()),
        ),
    ] {
        let bytes = failure.encode();
        assert_eq!(Failure::decode(&bytes), Ok(heard));
        for end in 0..bytes.len() {
            assert_eq!(
                Failure::decode(&bytes[..end]),
                Err(ProtocolFault::Malformed)
            );
        }
    }
    assert_eq!(
        offers_in(&[0; 9], 2),
        Err(ProtocolFault::Malformed),
        "a byte too many"
    );
}
