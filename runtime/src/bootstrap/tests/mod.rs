//! Tests with processes and threads that connect over TCP, without and with failures.

mod beats;
mod failures;
mod forks;
mod groups;
mod hosts;
mod parsers;
mod processes;
mod secrets;
mod silence;
mod steps;
mod strangers;
mod survivors;

use super::rendezvous::server::accept_ranks;
use super::*;
use crate::error::{Error, Peer, ProtocolFault};
use crate::testing::in_threads;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

fn job(rank: u32, world: u32, port: u16) -> Job {
    Job {
        rank,
        world,
        host: "127.0.0.1".into(),
        port,
        name: "test".into(),
        several_hosts: false,
        host_id: "host".into(),
        secret: None,
        timeout: TIMEOUT,
        silence: TIMEOUT,
        stop: Stop::default(),
    }
}

fn listener() -> (TcpListener, u16) {
    // Some tests have many connections, with both ends in this process.
    files::raise_limit();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("non-blocking");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

/// Returns a port on which nothing listens. Linux does not assign this port to connections, so no other process takes it
/// meanwhile.
fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 15_000 + (next % 16_000) as u16;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// Returns the log of this thread while it runs `body`.
pub(super) fn logged(body: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    tracing::subscriber::with_default(subscriber.finish(), body);
    let bytes = log.0.lock().expect("no panic").clone();
    String::from_utf8(bytes).expect("text")
}

/// Runs `body` on `world` threads that are connected over TCP, and returns the results by rank.
fn on_ranks<T: Send>(world: u32, body: impl Fn(Collective) -> T + Sync) -> Vec<T> {
    on_jobs(world, |rank, port| job(rank, world, port), body)
}

/// Runs `body` as [`on_ranks`] does, with a job per rank, which `job` returns for a rank and a port.
fn on_jobs<T: Send>(
    world: u32,
    job: impl Fn(u32, u16) -> Job + Sync,
    body: impl Fn(Collective) -> T + Sync,
) -> Vec<T> {
    in_threads(connect_all(world, job), |group| {
        body(Collective::new(group.expect("the ranks connect")))
    })
}

/// Connects all ranks, and returns the result of each rank.
fn connect_all(
    world: u32,
    job: impl Fn(u32, u16) -> Job + Sync,
) -> Vec<Result<tcp::TcpGroup, Error>> {
    let (listener, port) = listener();
    in_threads(0..world, |rank| {
        let job = job(rank, port);
        match rank {
            0 => accept_ranks(&job, &listener),
            _ => connect_ranks(&job),
        }
    })
}

/// The work of a rank in the tests: many steps, then an exchange of descriptors. Returns the text that the rank read from the
/// peers' files.
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
            // The duplicates share one file offset, so the file is read at an explicit offset.
            let mut text = [0];
            std::fs::File::from(fd)
                .read_exact_at(&mut text, 0)
                .expect("readable");
            String::from_utf8_lossy(&text).into_owned()
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

#[test]
fn threads_that_contribute_too_much_get_an_error() {
    let results = on_ranks(3, steps::too_much);
    for (rank, result) in results.into_iter().enumerate() {
        steps::check_too_much(rank, result);
    }
}

#[test]
fn a_stop_ends_a_step_of_threads_that_met() {
    for stops in [0, 1] {
        let end = std::sync::Barrier::new(3);
        let results = on_ranks(3, |ranks| steps::stopped(ranks, stops, &end));
        steps::check_stopped(stops, results);
    }
}
