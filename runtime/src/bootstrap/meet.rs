//! How processes find rank 0: it listens, the others connect and present themselves.

use super::fds::random_bytes;
use super::tcp::{TcpGroup, printable};
use super::wire::{Frame, Kind, Link, LinkError, Nonce, Reader, put_string};
use super::{POLL, ProtocolFault};
use crate::error::{Error, Peer};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

const STEP: &str = "rendezvous";

/// How long a connection may take to present itself.
const HELLO: Duration = Duration::from_secs(5);

/// Connections that have not presented themselves, at most.
const MAX_STRANGERS: usize = 64;

/// Who meets, and where.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub rank: u32,
    pub world: u32,
    /// Host name or address of rank 0.
    pub host: String,
    pub port: u16,
    /// What the launcher calls the job; ranks of differently named jobs don't meet.
    pub name: String,
    pub timeout: Duration,
}

/// Returns on every rank when all have met.
pub(crate) fn meet(job: &Job) -> Result<TcpGroup, Error> {
    if job.rank == 0 {
        listen(job).and_then(|listener| gather(job, &listener))
    } else {
        join(job)
    }
}

fn addresses(job: &Job) -> Result<Vec<SocketAddr>, std::io::Error> {
    let found: Vec<_> = (job.host.as_str(), job.port).to_socket_addrs()?.collect();
    if found.is_empty() {
        Err(std::io::Error::new(
            ErrorKind::NotFound,
            "the name has no address",
        ))
    } else {
        Ok(found)
    }
}

fn listen(job: &Job) -> Result<TcpListener, Error> {
    let bind = || {
        let found = addresses(job)?;
        match TcpListener::bind(found.as_slice()) {
            // The name may stand for a gateway in front of this host.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                TcpListener::bind((std::net::Ipv6Addr::UNSPECIFIED, job.port))
                    .or_else(|_| TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, job.port)))
            }
            other => other,
        }
    };
    let listener = bind().and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(|source| Error::Listen {
        address: format!("{}:{}", job.host, job.port),
        source: Arc::new(source),
    })
}

/// Rank 0: waits until every rank has presented itself, then welcomes all.
pub(super) fn gather(job: &Job, listener: &TcpListener) -> Result<TcpGroup, Error> {
    let deadline = Instant::now() + job.timeout;
    let nonce = random_bytes()?;
    let mut ranks: Vec<Option<Link>> = (1..job.world).map(|_| None).collect();
    let mut strangers: Vec<(Link, Instant)> = Vec::new();
    while ranks.iter().any(Option::is_none) {
        if Instant::now() >= deadline {
            let missing = (1..)
                .zip(&ranks)
                .filter(|(_, link)| link.is_none())
                .map(|(rank, _)| rank)
                .collect();
            return Err(Error::RanksMissing {
                step: STEP,
                ranks: missing,
                waited: job.timeout,
            });
        }
        while strangers.len() < MAX_STRANGERS {
            let Ok((stream, _)) = listener.accept() else {
                break;
            };
            strangers.extend(Link::new(stream).ok().map(|link| (link, Instant::now())));
        }
        for (mut link, since) in std::mem::take(&mut strangers) {
            let hello = match link.poll() {
                Ok(None) if since.elapsed() < HELLO => {
                    strangers.push((link, since));
                    continue;
                }
                Ok(Some(hello)) => check_hello(job, &hello),
                Err(LinkError::Fault(fault)) => Err(fault),
                Ok(None) | Err(_) => continue,
            };
            match hello {
                Ok(rank) if ranks[rank as usize - 1].is_none() => {
                    ranks[rank as usize - 1] = Some(link)
                }
                Ok(rank) => refuse(link, &ProtocolFault::DuplicateRank { rank }),
                Err(fault) => refuse(link, &fault),
            }
        }
        std::thread::sleep(POLL);
    }
    let mut links: Vec<Link> = ranks.into_iter().flatten().collect();
    let welcome = Frame {
        kind: Kind::Welcome,
        nonce,
        payload: Vec::new(),
    };
    for (rank, link) in (1..).zip(&mut links) {
        link.send(&welcome, deadline + HELLO)
            .map_err(|_| Error::RankLeft { rank, step: STEP })?;
    }
    Ok(TcpGroup::new(job.rank, job.world, nonce, links))
}

fn refuse(mut link: Link, fault: &ProtocolFault) {
    // Not an error of this rank: anyone can connect. The rank that was meant to come will be missing.
    tracing::warn!(%fault, "a process that connected was refused");
    let frame = Frame {
        kind: Kind::Refused,
        nonce: Nonce::default(),
        payload: fault.to_string().into_bytes(),
    };
    let _ = link.send(&frame, Instant::now() + Duration::from_millis(100));
}

fn hello(job: &Job) -> Frame {
    let mut payload = Vec::new();
    payload.extend_from_slice(&job.rank.to_le_bytes());
    payload.extend_from_slice(&job.world.to_le_bytes());
    put_string(&mut payload, job.name.as_bytes());
    Frame {
        kind: Kind::Hello,
        nonce: Nonce::default(),
        payload,
    }
}

fn check_hello(job: &Job, frame: &Frame) -> Result<u32, ProtocolFault> {
    if frame.kind != Kind::Hello {
        return Err(ProtocolFault::Malformed);
    }
    let mut reader = Reader(&frame.payload);
    let (rank, world) = (reader.u32()?, reader.u32()?);
    if reader.string()? != job.name.as_bytes() {
        return Err(ProtocolFault::OtherJob);
    }
    if world != job.world {
        return Err(ProtocolFault::World {
            found: world,
            expected: job.world,
        });
    }
    if rank == 0 || rank >= world {
        return Err(ProtocolFault::Rank { rank, world });
    }
    Ok(rank)
}

/// Other ranks: connects, again and again until rank 0 listens, and waits to be welcomed.
fn join(job: &Job) -> Result<TcpGroup, Error> {
    let deadline = Instant::now() + job.timeout;
    let mut pause = Duration::from_millis(10);
    loop {
        let (address, failure) = match connect(job, deadline) {
            Ok((link, address)) => match greet(job, link, deadline)? {
                Some(group) => return Ok(group),
                None => (address, std::io::Error::from(ErrorKind::ConnectionReset)),
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

/// `None` if the other end hung up: rank 0 may be starting again.
fn greet(job: &Job, mut link: Link, deadline: Instant) -> Result<Option<TcpGroup>, Error> {
    let protocol = |source| Error::Protocol {
        peer: Peer::Rank(0),
        step: STEP,
        source,
    };
    // Rank 0 gives up at its own deadline and hangs up; it is given the time to.
    let deadline = deadline + HELLO;
    if link.send(&hello(job), deadline).is_err() {
        return Ok(None);
    }
    let answer = loop {
        match link.poll() {
            Ok(Some(frame)) => break frame,
            Ok(None) if Instant::now() >= deadline => {
                return Err(Error::RanksMissing {
                    step: STEP,
                    ranks: vec![0],
                    waited: job.timeout,
                });
            }
            Ok(None) => std::thread::sleep(POLL),
            Err(LinkError::Fault(fault)) => return Err(protocol(fault)),
            Err(_) => return Ok(None),
        }
    };
    match answer.kind {
        Kind::Welcome => Ok(Some(TcpGroup::new(
            job.rank,
            job.world,
            answer.nonce,
            vec![link],
        ))),
        Kind::Refused => Err(protocol(ProtocolFault::Refused {
            reason: printable(&answer.payload),
        })),
        _ => Err(protocol(ProtocolFault::Malformed)),
    }
}
