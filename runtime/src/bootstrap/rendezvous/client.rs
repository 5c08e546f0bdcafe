//! The side of the other ranks in the rendezvous: they connect to rank 0 and wait until all ranks are connected.

use super::address::{addresses, look_up_error};
use super::handshake::{Challenge, Hello, Transcript};
use super::job::{HANDSHAKE_TIMEOUT, Job, STEP};
use crate::bootstrap::failure::{StepFailure, printable};
use crate::bootstrap::files::{is_exhausted, os};
use crate::bootstrap::limits::POLL;
use crate::bootstrap::tcp::TcpGroup;
use crate::bootstrap::wire::{
    Connection, ConnectionError, Frame, FrameKind, UNVERIFIED_BYTES, root_bytes,
};
use crate::error::{Error, Peer, ProtocolFault, RendezvousError};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time for one address, so that other addresses can be tried too.
const PER_ADDRESS: Duration = Duration::from_secs(2);

/// Connects to rank 0, repeatedly until it listens, and waits until all ranks are connected.
pub(crate) fn join(job: &Job) -> Result<TcpGroup, Error> {
    let deadline = Instant::now() + job.timeout;
    let mut pause = Duration::from_millis(10);
    loop {
        let error = match attempt(job, deadline) {
            Ok(group) => return Ok(group),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Early(error)) => error,
        };
        if Instant::now() + pause >= deadline {
            return Err(error);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// The reason why an attempt to join failed.
enum Failure {
    /// Rank 0 may not run yet, or its name may not be known yet.
    Early(Error),
    Final(Error),
}

fn attempt(job: &Job, deadline: Instant) -> Result<TcpGroup, Failure> {
    let found = addresses(job, deadline).map_err(|source| match is_exhausted(&source) {
        true => Failure::Final(look_up_error(job, source)),
        false => Failure::Early(look_up_error(job, source)),
    })?;
    let not_connected = |source: io::Error| match is_exhausted(&source) {
        true => Failure::Final(os("connecting to rank 0")(source)),
        false => Failure::Early(Error::Rendezvous(RendezvousError::Connect {
            address: job.address(),
            waited: job.timeout,
            source: Arc::new(source),
        })),
    };
    let link = connect(&found, deadline)
        .and_then(|stream| Connection::new(stream, job.silence))
        .map_err(not_connected)?;
    handshake(job, link, deadline).map_err(|rejection| match rejection {
        Some(error) => Failure::Final(error),
        None => not_connected(ErrorKind::ConnectionReset.into()),
    })
}

/// Connects to the first of `addresses` that accepts the connection. Each address gets an equal share of the remaining time:
/// without shares, an address that drops all packets would use up all of the time.
pub(crate) fn connect(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
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

/// Refuses a connection of a socket with itself. If nothing listens on a port of this host, a connection can get that port as
/// its own and connect to itself. Such a connection would also keep rank 0 from listening there.
pub(crate) fn not_to_itself(stream: TcpStream) -> io::Result<TcpStream> {
    match stream.local_addr()? == stream.peer_addr()? {
        true => Err(ErrorKind::ConnectionRefused.into()),
        false => Ok(stream),
    }
}

/// The reason why rank 0 did not accept this rank. `None` if the connection was closed: rank 0 may be restarting, or may have
/// too many connections.
type Rejection = Option<Error>;

fn protocol(source: ProtocolFault) -> Rejection {
    Some(Error::Protocol {
        peer: Peer::Rank(0),
        step: STEP,
        source,
    })
}

fn handshake(job: &Job, mut link: Connection, deadline: Instant) -> Result<TcpGroup, Rejection> {
    // Rank 0 reports a failure at its own deadline, so this rank waits a little longer.
    let deadline = deadline + HANDSHAKE_TIMEOUT;
    let hello = Hello::new(job).map_err(Some)?;
    link.send(&hello.frame(), deadline).map_err(|_| None)?;
    let frame = answer(job, &mut link, FrameKind::Challenge, deadline)?;
    let challenge = Challenge::check(&frame, job).map_err(protocol)?;
    let transcript = Transcript::new(&hello, &challenge);
    link.send(&transcript.proof(job), deadline)
        .map_err(|_| None)?;
    link.allow(UNVERIFIED_BYTES + 4 * job.world as usize);
    let frame = answer(job, &mut link, FrameKind::Welcome, deadline)?;
    let host_map = transcript.check_welcome(&frame, job).map_err(protocol)?;
    link.allow(root_bytes(job.world));
    let links = vec![link];
    let addresses = links.iter().filter_map(Connection::own_address);
    let network = job.network(addresses, &frame.nonce);
    let place = (job.rank, host_map);
    Ok(TcpGroup::new(place, frame.nonce, links, network))
}

/// Waits for the next frame of rank 0, which should be of kind `wanted`.
fn answer(
    job: &Job,
    link: &mut Connection,
    wanted: FrameKind,
    deadline: Instant,
) -> Result<Frame, Rejection> {
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
            Err(ConnectionError::Fault(fault)) => return Err(protocol(fault)),
            Err(_) => return Err(None),
        }
    };
    match frame.kind {
        kind if kind == wanted => Ok(frame),
        FrameKind::Refused => Err(protocol(ProtocolFault::Refused {
            reason: printable(&frame.payload),
        })),
        FrameKind::Failed => Err(match StepFailure::decode(&frame.payload) {
            Ok(reported) => Some(reported.into_error(STEP, job.timeout)),
            Err(fault) => protocol(fault),
        }),
        _ => Err(protocol(ProtocolFault::Malformed)),
    }
}
