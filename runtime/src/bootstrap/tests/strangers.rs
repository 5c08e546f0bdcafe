//! Tests with other programs that connect to the port.

use super::super::failure::printable;
use super::super::rendezvous::handshake::{Challenge, Hello, Transcript};
use super::super::wire::{Frame, FrameKind, Nonce, RANK_BYTES, VERSION};
use super::*;
use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns the next frame that arrives.
pub fn next_frame(stream: &mut TcpStream) -> Frame {
    let mut bytes = Vec::new();
    loop {
        if let Some((frame, _)) = Frame::decode(&bytes, RANK_BYTES).expect("our protocol") {
            return frame;
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("more bytes");
        bytes.extend(byte);
    }
}

/// Sends everything that a rank sends before it waits for the `Welcome` frame.
pub fn present(stream: &mut TcpStream, job: &Job) -> Transcript {
    let hello = Hello::new(job).expect("random numbers");
    stream.write_all(&hello.frame().encode()).expect("sent");
    let challenge = Challenge::check(&next_frame(stream), job).expect("a challenge");
    let transcript = Transcript::new(&hello, &challenge);
    let proof = transcript.proof(job).encode();
    stream.write_all(&proof).expect("sent");
    transcript
}

pub fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).expect("connects")
}

/// Connects, sends `bytes`, and returns the reason of the refusal.
fn refusal(port: u16, bytes: &[u8]) -> String {
    let mut stream = connect(port);
    stream.write_all(bytes).expect("sent");
    let frame = next_frame(&mut stream);
    assert_eq!(frame.kind, FrameKind::Refused);
    printable(&frame.payload)
}

fn hello(job: &Job) -> Vec<u8> {
    Hello::new(job).expect("random numbers").frame().encode()
}

#[test]
fn strangers_are_refused_with_a_reason_and_the_ranks_still_meet() {
    let (listener, port) = listener();
    let usual = hello(&job(1, 2, port));
    let mut versioned = usual.clone();
    versioned[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let mut huge = usual.clone();
    huge[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    let kind = |kind| Frame {
        kind,
        nonce: Nonce::default(),
        payload: Vec::new(),
    };
    let other = Job {
        name: "another job".into(),
        ..job(1, 2, port)
    };
    let strangers: Vec<(Vec<u8>, &str)> = vec![
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "does not speak"),
        (versioned, "speaks version 5"),
        (huge, "at most 1024"),
        (kind(FrameKind::Contribution).encode(), "malformed"),
        (kind(FrameKind::Proof).encode(), "malformed"),
        (hello(&other), "another job"),
        (hello(&job(1, 4, port)), "WORLD_SIZE 4"),
        (hello(&job(0, 2, port)), "rank 0 of 2"),
        (hello(&job(7, 2, port)), "rank 7 of 2"),
    ];
    std::thread::scope(|scope| {
        let silent = connect(port);
        let root = scope.spawn(|| accept_ranks(&job(0, 2, port), &listener));
        for (bytes, reason) in strangers {
            let text = refusal(port, &bytes);
            assert!(text.contains(reason), "{reason}: {text}");
        }
        // This connection sends half a message and closes.
        connect(port).write_all(&usual[..20]).expect("sent");
        let joined = connect_ranks(&job(1, 2, port)).expect("the real rank 1");
        let root = root.join().expect("no panic").expect("the ranks connect");
        drop((silent, joined, root));
    });
}

/// The crowd consists of more silent connections than rank 0 keeps, some that send single bytes, and some that connect
/// repeatedly.
#[test]
fn a_crowd_does_not_keep_the_ranks_from_meeting() {
    let (listener, port) = listener();
    let (done, start) = (AtomicBool::new(false), hello(&job(1, 3, port)));
    std::thread::scope(|scope| {
        let root = scope.spawn(|| accept_ranks(&job(0, 3, port), &listener));
        let _silent: Vec<TcpStream> = (0..300).map(|_| connect(port)).collect();
        for dribbles in [true, false, false] {
            let (done, start) = (&done, &start);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    // After all ranks are connected, no socket listens any more.
                    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
                        return;
                    };
                    for byte in start.iter().take(if dribbles { 40 } else { 0 }) {
                        let _ = stream.write_all(&[*byte]);
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        std::thread::sleep(SHORT);
        let others = [1, 2].map(|rank| scope.spawn(move || connect_ranks(&job(rank, 3, port))));
        // A rank that is kept out gets an error at its deadline. The time to connect depends on the load of the cores.
        let met: Vec<bool> = std::iter::once(root)
            .chain(others)
            .map(|rank| rank.join().expect("no panic").is_ok())
            .collect();
        done.store(true, Ordering::Relaxed);
        assert_eq!(met, [true; 3]);
    });
}

/// Users read the log of rank 0 first.
#[test]
fn rank_0_logs_refused_connections_with_reasons() {
    let (listener, port) = listener();
    let brief = Job {
        timeout: Duration::from_secs(2),
        ..job(0, 2, port)
    };
    std::thread::scope(|scope| {
        let root = scope.spawn(|| accept_ranks(&brief, &listener));
        for _ in 0..3 {
            refusal(port, &hello(&job(1, 4, port)));
        }
        refusal(port, b"GET / HTTP/1.1\r\n\r\n");
        let error = root.join().expect("no panic").err();
        let text = error.expect("rank 1 is missing").to_string();
        let expected = "rank 1 has not entered \"rendezvous\" within 2s. Check that every rank makes the same calls. Rank 0 refused 127.0.0.1 (3 times): it was started with WORLD_SIZE 4, but rank 0 with 2; 127.0.0.1: it does not speak mkernel's protocol";
        assert!(text.starts_with(expected), "{text}");
    });
}

/// Returns a connection from 127.0.0.2, which counts as another host.
fn connect_from_elsewhere(port: u16) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    use std::net::SocketAddr;
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&stream, &SocketAddr::from(([127, 0, 0, 2], 0))).expect("an address of the loopback");
    connect(&stream, &SocketAddr::from(([127, 0, 0, 1], port))).expect("connects");
    stream.into()
}

/// More connections than rank 0 keeps send their first message, while a rank of another address delays its proof.
#[test]
fn a_crowd_that_says_hello_does_not_push_out_ranks_of_other_hosts() {
    let (listener, port) = listener();
    std::thread::scope(|scope| {
        let root = scope.spawn(|| accept_ranks(&job(0, 2, port), &listener));
        let rank = job(1, 2, port);
        let own = Hello::new(&rank).expect("random numbers");
        let mut stream = connect(port);
        stream.write_all(&own.frame().encode()).expect("sent");
        let challenge = Challenge::check(&next_frame(&mut stream), &rank).expect("a challenge");
        let mut crowd: Vec<TcpStream> = (0..150).map(|_| connect_from_elsewhere(port)).collect();
        for one in &mut crowd {
            // The connection may already be closed.
            let _ = one.write_all(&hello(&rank));
        }
        let is_asked = |one: &mut TcpStream| matches!(one.read(&mut [0]), Ok(1));
        let asked = crowd
            .iter_mut()
            .map(is_asked)
            .filter(|asked| *asked)
            .count();
        assert!(asked >= 100, "{asked}");
        let proof = Transcript::new(&own, &challenge).proof(&rank);
        stream.write_all(&proof.encode()).expect("sent");
        assert_eq!(next_frame(&mut stream).kind, FrameKind::Welcome);
        root.join().expect("no panic").expect("the ranks connect");
    });
}

#[test]
fn the_second_process_with_a_rank_is_refused() {
    let (listener, port) = listener();
    std::thread::scope(|scope| {
        let root = scope.spawn(|| accept_ranks(&job(0, 3, port), &listener));
        // Either process may be the first. The first process waits for rank 2.
        let both = [(); 2].map(|()| scope.spawn(move || connect_ranks(&job(1, 3, port))));
        while !both.iter().any(|rank| rank.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let last = scope.spawn(move || connect_ranks(&job(2, 3, port)));
        for rank in [root, last] {
            rank.join().expect("no panic").expect("the ranks connect");
        }
        let refused: Vec<String> = both
            .into_iter()
            .filter_map(|rank| rank.join().expect("no panic").err())
            .map(|error| crate::error::with_causes(&error))
            .collect();
        assert_eq!(refused.len(), 1, "{refused:?}");
        let text = &refused[0];
        assert!(text.contains("rank 1 is already connected"), "{text}");
    });
}

#[test]
fn another_service_at_the_port_is_distinguished_from_rank_0() {
    let (listener, port) = listener();
    listener.set_nonblocking(false).expect("blocking");
    let service = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(b"220 smtp ready\r\n").expect("sent");
        std::thread::sleep(SHORT);
    });
    let error = connect_ranks(&job(1, 2, port)).err().expect("no rank 0");
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
            let mut ranks = Collective::new(
                accept_ranks(&job(0, 3, port), &listener).expect("the ranks connect"),
            );
            ranks.barrier("step", TIMEOUT)
        });
        let honest = scope.spawn(move || {
            let mut ranks =
                Collective::new(connect_ranks(&job(1, 3, port)).expect("the ranks connect"));
            ranks.barrier("step", TIMEOUT)
        });
        // Rank 2 follows the protocol until the `Welcome` frame, then sends a frame whose contents are invalid.
        let mut stream = connect(port);
        present(&mut stream, &job(2, 3, port));
        let welcome = next_frame(&mut stream);
        assert_eq!(welcome.kind, FrameKind::Welcome);
        let lie = Frame {
            kind: FrameKind::Contribution,
            nonce: welcome.nonce,
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
