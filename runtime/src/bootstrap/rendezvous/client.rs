//! The side of the other ranks in the rendezvous: they connect to rank 0 and wait until all ranks are connected.

use super::address::{addresses, look_up_error};
use super::handshake::{Challenge, Hello, Transcript};
use super::job::{HANDSHAKE_TIMEOUT, Job, STEP};
use crate::bootstrap::connection_error::ConnectionError;
use crate::bootstrap::failure::{StepFailure, printable};
use crate::bootstrap::files::{is_exhausted, os};
use crate::bootstrap::limits::POLL;
use crate::bootstrap::tcp::TcpGroup;
use crate::bootstrap::wire::{Connection, Frame, FrameKind, UNVERIFIED_BYTES, root_bytes};
use crate::error::{Error, Peer, ProtocolFault, RendezvousError};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time for one address, so that other addresses can be tried too. TCP repeats a packet that was lost after 1 s.
pub(crate) const PER_ADDRESS: Duration = Duration::from_secs(2);

/// Connects to rank 0, repeatedly until it listens, and waits until all ranks are connected.
pub(crate) fn join(job: &Job) -> Result<TcpGroup, Error> {
    let deadline = Instant::now() + job.timeout;
    let mut pause = Duration::from_millis(10);
    loop {
        let error = match attempt(job, deadline, deadline) {
            Ok((group, ranks)) if ranks.len() == job.world as usize => return Ok(group),
            Ok(_) => return Err(protocol(ProtocolFault::Malformed)),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Silent) => return Err(silent(job)),
            Err(Failure::Early(error)) => error,
        };
        if Instant::now() + pause >= deadline {
            return Err(error);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// The answer of the rank at a door.
pub(crate) enum Answer {
    /// The connections to the ranks that are left, and their ranks in the job.
    Joined(Box<TcpGroup>, Vec<u32>),
    /// The rank has ended, or has not answered within the job's timeout.
    Absent,
    /// The rank's host does not answer.
    HostDown,
}

/// The number of connections without an answer after which a host counts as down.
pub(crate) const UNANSWERED: u32 = 2;

/// Connects to the rank that rebuilds the job, at the address of `job`, and waits until the rank has connected all ranks that are
/// left, which takes at most `collection`.
pub(crate) fn join_survivors(job: &Job, collection: Duration) -> Result<Answer, Error> {
    let deadline = Instant::now() + job.timeout;
    let mut unanswered = 0;
    loop {
        let last = deadline + collection;
        match attempt(job, deadline, last) {
            Ok((group, ranks)) => return Ok(Answer::Joined(Box::new(group), ranks)),
            Err(Failure::Final(Error::Protocol {
                source: ProtocolFault::Refused { .. },
                ..
            })) => {}
            // Another program may have the port of a rank that has ended.
            Err(Failure::Final(Error::Protocol { .. }) | Failure::Silent) => {
                return Ok(Answer::Absent);
            }
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Early(error)) => match connect_error(&error) {
                Some(ErrorKind::ConnectionRefused) => return Ok(Answer::Absent),
                // The rank may have too many connections.
                Some(ErrorKind::ConnectionReset) => {}
                _ => unanswered += 1,
            },
        }
        if unanswered == UNANSWERED {
            return Ok(Answer::HostDown);
        }
        if Instant::now() >= deadline {
            return Ok(Answer::Absent);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the kind of the error of a connection.
fn connect_error(error: &Error) -> Option<ErrorKind> {
    match error {
        Error::Rendezvous(RendezvousError::Connect { source, .. }) => Some(source.kind()),
        _ => None,
    }
}

/// The reason why an attempt to join failed.
enum Failure {
    /// Rank 0 may not run yet, its name may not be known yet, or it has closed the connection: it may be restarting, or may
    /// have too many connections.
    Early(Error),
    /// Rank 0 is connected and did not answer until the deadline.
    Silent,
    Final(Error),
}

impl From<ProtocolFault> for Failure {
    fn from(fault: ProtocolFault) -> Self {
        Self::Final(protocol(fault))
    }
}

/// Connects to rank 0, which must answer until `deadline` and must have connected all ranks until `last`.
fn attempt(job: &Job, deadline: Instant, last: Instant) -> Result<(TcpGroup, Vec<u32>), Failure> {
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
    let joined = handshake(job, link, [deadline, last])?;
    joined.ok_or_else(|| not_connected(ErrorKind::ConnectionReset.into()))
}

/// Returns the error if rank 0 does not answer.
fn silent(job: &Job) -> Error {
    Error::RanksMissing {
        step: STEP,
        ranks: vec![0],
        waited: job.timeout,
        refused: Vec::new(),
    }
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

fn protocol(source: ProtocolFault) -> Error {
    Error::Protocol {
        peer: Peer::Rank(0),
        step: STEP,
        source,
    }
}

/// Joins the ranks that rank 0 connects. Returns `None` if rank 0 has closed the connection.
fn handshake(
    job: &Job,
    mut link: Connection,
    deadlines: [Instant; 2],
) -> Result<Option<(TcpGroup, Vec<u32>)>, Failure> {
    // Rank 0 reports a failure at its own deadline, so this rank waits a little longer.
    let [deadline, last] = deadlines.map(|deadline| deadline + HANDSHAKE_TIMEOUT);
    let hello = Hello::new(job).map_err(Failure::Final)?;
    if link.send(&hello.frame(), deadline).is_err() {
        return Ok(None);
    }
    let Some(frame) = answer(job, &mut link, FrameKind::Challenge, deadline)? else {
        return Ok(None);
    };
    let challenge = Challenge::check(&frame, job)?;
    let transcript = Transcript::new(&hello, &challenge);
    if link.send(&transcript.proof(job), deadline).is_err() {
        return Ok(None);
    }
    link.allow(UNVERIFIED_BYTES + 8 * job.world as usize);
    let Some(frame) = answer(job, &mut link, FrameKind::Welcome, last)? else {
        return Ok(None);
    };
    let admitted = transcript.check_welcome(&frame, job)?;
    link.allow(root_bytes(job.world));
    let links = vec![link];
    let addresses = links.iter().filter_map(Connection::own_address);
    let network = job.network(addresses, &frame.nonce);
    let place = (admitted.place_of(job.rank), admitted.hosts);
    let group = TcpGroup::new(place, frame.nonce, links, network);
    Ok(Some((group, admitted.ranks)))
}

/// Waits for the next frame of rank 0, which should be of kind `wanted`. Returns `None` if the connection was closed.
fn answer(
    job: &Job,
    link: &mut Connection,
    wanted: FrameKind,
    deadline: Instant,
) -> Result<Option<Frame>, Failure> {
    let frame = loop {
        match link.poll() {
            Ok(Some(frame)) => break frame,
            Ok(None) if job.stop.is_set() => {
                return Err(Failure::Final(Error::Aborted { cause: None }));
            }
            Ok(None) if Instant::now() >= deadline => return Err(Failure::Silent),
            Ok(None) => std::thread::sleep(POLL),
            Err(ConnectionError::Fault(fault)) => return Err(fault.into()),
            Err(_) => return Ok(None),
        }
    };
    match frame.kind {
        kind if kind == wanted => Ok(Some(frame)),
        FrameKind::Refused => Err(Failure::from(ProtocolFault::Refused {
            reason: printable(&frame.payload),
        })),
        FrameKind::Failed => Err(match StepFailure::decode(&frame.payload) {
            Ok(reported) => Failure::Final(reported.into_error(STEP, job.timeout)),
            Err(fault) => fault.into(),
        }),
        _ => Err(ProtocolFault::Malformed.into()),
    }
}
