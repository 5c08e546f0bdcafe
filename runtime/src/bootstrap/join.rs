//! The other ranks' side of the rendezvous: they connect to rank 0 and wait to be welcomed.

use super::failure::{Failure, printable};
use super::greeting::{Challenge, Conversation, Hello};
use super::meet::{HELLO, Job, STEP, addresses};
use super::tcp::TcpGroup;
use super::wire::{Frame, Kind, Link, LinkError, STRANGER_BYTES, root_bytes};
use super::{POLL, ProtocolFault};
use crate::error::{Error, Peer};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connects, again and again until rank 0 listens, and waits to be welcomed.
pub(super) fn join(job: &Job) -> Result<TcpGroup, Error> {
    let deadline = Instant::now() + job.timeout;
    let mut pause = Duration::from_millis(10);
    loop {
        let (address, failure) = match connect(job, deadline) {
            Ok((link, address)) => match greet(job, link, deadline) {
                Ok(group) => return Ok(group),
                Err(Some(error)) => return Err(error),
                Err(None) => (address, std::io::Error::from(ErrorKind::ConnectionReset)),
            },
            Err(failure) => failure,
        };
        if Instant::now() + pause >= deadline {
            return Err(Error::Connect {
                address,
                waited: job.timeout,
                source: Arc::new(failure),
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

fn connect(
    job: &Job,
    deadline: Instant,
) -> Result<(Link, SocketAddr), (SocketAddr, std::io::Error)> {
    let mut failure = (
        SocketAddr::from(([0, 0, 0, 0], job.port)),
        std::io::Error::from(ErrorKind::NotFound),
    );
    let found = addresses(job).map_err(|error| (failure.0, error))?;
    for address in found {
        let rest = deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, rest).and_then(Link::new) {
            Ok(link) => return Ok((link, address)),
            Err(error) => failure = (address, error),
        }
    }
    Err(failure)
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
