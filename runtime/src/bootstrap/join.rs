//! The other ranks' side of the rendezvous: they connect to rank 0 and wait to be welcomed.

use super::failure::{Failure, printable};
use super::files::{is_exhausted, os};
use super::greeting::{Challenge, Conversation, Hello};
use super::meet::{HELLO, Job, STEP, addresses};
use super::tcp::TcpGroup;
use super::wire::{Frame, Kind, Link, LinkError, STRANGER_BYTES, root_bytes};
use super::{POLL, ProtocolFault};
use crate::error::{Error, Peer};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one address may take to answer: the others may be those that work.
const PER_ADDRESS: Duration = Duration::from_secs(2);

/// Connects, again and again until rank 0 listens, and waits to be welcomed.
pub(super) fn join(job: &Job) -> Result<TcpGroup, Error> {
    let deadline = Instant::now() + job.timeout;
    let mut pause = Duration::from_millis(10);
    loop {
        let connected = addresses(job, deadline).and_then(|found| connect(&found, deadline));
        let connected = connected.and_then(|stream| Link::new(stream, job.silence));
        let failure = match connected {
            Ok(link) => match greet(job, link, deadline) {
                Ok(group) => return Ok(group),
                Err(Some(error)) => return Err(error),
                Err(None) => io::Error::from(ErrorKind::ConnectionReset),
            },
            Err(failure) if is_exhausted(&failure) => {
                return Err(os("connecting to rank 0")(failure));
            }
            Err(failure) => failure,
        };
        if Instant::now() + pause >= deadline {
            return Err(Error::Connect {
                address: format!("{}:{}", job.host, job.port),
                waited: job.timeout,
                source: Arc::new(failure),
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// A connection to the first of `addresses` that takes it. Each gets a fair share of the time that is left, since one
/// that drops all packets would take all of it.
pub(super) fn connect(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut failures = Vec::new();
    for (address, left) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let rest = deadline.saturating_duration_since(Instant::now());
        let share = (rest / left).min(PER_ADDRESS).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(address, share).and_then(not_to_itself) {
            Ok(stream) => return Ok(stream),
            Err(error) if is_exhausted(&error) => return Err(error),
            Err(error) => failures.push((address, error)),
        }
    }
    let texts = failures.iter().map(|(at, error)| format!("{at}: {error}"));
    let text = texts.collect::<Vec<_>>().join("; ");
    let last = failures.last().map(|(_, error)| error.kind());
    Err(io::Error::new(last.unwrap_or(ErrorKind::NotFound), text))
}

/// Where nobody listens, a connection within a host can get the very port that it is to reach as its own, and is then one
/// with itself, which would also keep rank 0 from listening there.
pub(super) fn not_to_itself(stream: TcpStream) -> io::Result<TcpStream> {
    match stream.local_addr()? == stream.peer_addr()? {
        true => Err(ErrorKind::ConnectionRefused.into()),
        false => Ok(stream),
    }
}

/// Why there is no group. None if the other end hung up: rank 0 may be starting again, or had too many callers.
type NotWelcome = Option<Error>;

fn protocol(source: ProtocolFault) -> NotWelcome {
    Some(Error::Protocol {
        peer: Peer::Rank(0),
        step: STEP,
        source,
    })
}

fn greet(job: &Job, mut link: Link, deadline: Instant) -> Result<TcpGroup, NotWelcome> {
    // Rank 0 gives up at its own deadline and says so; it is given the time to.
    let deadline = deadline + HELLO;
    let hello = Hello::new(job).map_err(Some)?;
    link.send(&hello.frame(), deadline).map_err(|_| None)?;
    let frame = answer(job, &mut link, Kind::Challenge, deadline)?;
    let challenge = Challenge::check(&frame, job).map_err(protocol)?;
    let conversation = Conversation::new(&hello, &challenge);
    link.send(&conversation.proof(job), deadline)
        .map_err(|_| None)?;
    link.allow(STRANGER_BYTES + 4 * job.world as usize);
    let frame = answer(job, &mut link, Kind::Welcome, deadline)?;
    let nodes = conversation.check_welcome(&frame, job).map_err(protocol)?;
    link.allow(root_bytes(job.world));
    Ok(TcpGroup::new(job.rank, nodes, frame.nonce, vec![link]))
}

/// Rank 0's next frame, which should be of kind `wanted`.
fn answer(
    job: &Job,
    link: &mut Link,
    wanted: Kind,
    deadline: Instant,
) -> Result<Frame, NotWelcome> {
    let frame = loop {
        match link.poll() {
            Ok(Some(frame)) => break frame,
            Ok(None) if Instant::now() >= deadline => {
                return Err(Some(Error::RanksMissing {
                    step: STEP,
                    ranks: vec![0],
                    waited: job.timeout,
                    refused: Vec::new(),
                }));
            }
            Ok(None) => std::thread::sleep(POLL),
            Err(LinkError::Fault(fault)) => return Err(protocol(fault)),
            Err(_) => return Err(None),
        }
    };
    match frame.kind {
        kind if kind == wanted => Ok(frame),
        Kind::Refused => Err(protocol(ProtocolFault::Refused {
            reason: printable(&frame.payload),
        })),
        Kind::Failed => Err(match Failure::decode(&frame.payload) {
            Ok(heard) => Some(heard.into_error(STEP, job.timeout)),
            Err(fault) => protocol(fault),
        }),
        _ => Err(protocol(ProtocolFault::Malformed)),
    }
}
