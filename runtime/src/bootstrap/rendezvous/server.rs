//! Rank 0's side of the rendezvous: it listens until all ranks have completed the handshake, then sends each rank a `Welcome`
//! frame. When a job is rebuilt, its lowest rank that is left takes this side.
//!
//! Any program can connect. A connection uses a bounded amount of memory for a bounded time, and no connection waits
//! for another.

use super::handshake::{Admitted, Challenge, Hello, Transcript};
use super::job::{HANDSHAKE_TIMEOUT, Job, STEP};
use super::pending::{MOST, PendingConnection, PendingConnections};
use super::refusals::Refusals;
use crate::bootstrap::connection_error::ConnectionError;
use crate::bootstrap::failure::StepFailure;
use crate::bootstrap::fds::random_bytes;
use crate::bootstrap::files::{is_exhausted, os};
use crate::bootstrap::host_map::HostMap;
use crate::bootstrap::limits::POLL;
use crate::bootstrap::step_frames::announce;
use crate::bootstrap::tcp::TcpGroup;
use crate::bootstrap::wire::{Connection, Frame, FrameKind, Nonce, RANK_BYTES};
use crate::error::{Error, ProtocolFault};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

/// Waits until all ranks are connected.
pub(crate) fn accept_ranks(job: &Job, listener: &TcpListener) -> Result<TcpGroup, Error> {
    let deadline = Instant::now() + job.timeout;
    let mut server = Server::new(job)?;
    while !server.missing().is_empty() {
        if Instant::now() >= deadline {
            return Err(server.abort_without(server.missing()));
        }
        server.look(listener)?;
    }
    server
        .welcome(deadline + HANDSHAKE_TIMEOUT)
        .map(|(group, _)| group)
}

/// The interval between two checks for a rank that has ended. The missing ranks are checked in turns.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Waits until all higher ranks of a job are connected, except for ranks that have ended according to `has_ended`. After the
/// job's timeout, goes on without the ranks that are missing. Returns the ranks that are connected.
///
/// # Errors
/// [`Error::RanksMissing`] on all connected ranks if there are fewer than `at_least`, including this rank.
pub(crate) fn accept_survivors(
    job: &Job,
    listener: &TcpListener,
    at_least: u32,
    mut has_ended: impl FnMut(u32) -> bool,
) -> Result<(TcpGroup, Vec<u32>), Error> {
    let deadline = Instant::now() + job.timeout;
    let mut server = Server::new(job)?;
    let (mut last, mut checked) = (job.rank, Instant::now());
    loop {
        server.look(listener)?;
        let missing = server.missing();
        let next = missing.iter().find(|rank| **rank > last);
        let Some(&rank) = next.or(missing.first()) else {
            break;
        };
        if Instant::now() >= deadline {
            break;
        }
        if job.stop.is_set() {
            return Err(server.stopped());
        }
        if checked.elapsed() >= CHECK_INTERVAL {
            if has_ended(rank) {
                server.expected.remove(&rank);
            }
            (last, checked) = (rank, Instant::now());
        }
    }
    let others = (0..job.world).filter(|rank| *rank != job.rank);
    let missing: Vec<u32> = others
        .filter(|rank| !server.admitted.contains_key(rank))
        .collect();
    if (server.admitted.len() as u32) + 1 < at_least {
        return Err(server.abort_without(missing));
    }
    if !missing.is_empty() {
        tracing::warn!(
            rank = job.rank,
            ?missing,
            "the job is rebuilt without ranks"
        );
    }
    server.welcome(Instant::now() + HANDSHAKE_TIMEOUT)
}

/// A rank that has completed the handshake.
struct AdmittedRank {
    link: Connection,
    host: Vec<u8>,
    transcript: Transcript,
}

struct Server<'a> {
    job: &'a Job,
    own: Hello,
    pending: PendingConnections,
    refusals: Refusals,
    /// The ranks that must be admitted.
    expected: BTreeSet<u32>,
    admitted: BTreeMap<u32, AdmittedRank>,
}

impl<'a> Server<'a> {
    /// Returns a server that expects all ranks above its own.
    fn new(job: &'a Job) -> Result<Self, Error> {
        Ok(Self {
            job,
            own: Hello::new(job)?,
            pending: PendingConnections::default(),
            refusals: Refusals::default(),
            expected: (job.rank + 1..job.world).collect(),
            admitted: BTreeMap::new(),
        })
    }

    fn missing(&self) -> Vec<u32> {
        let expected = self.expected.iter();
        let missing = expected.filter(|rank| !self.admitted.contains_key(rank));
        missing.copied().collect()
    }

    /// Accepts and reads all connections once, and pauses.
    fn look(&mut self, listener: &TcpListener) -> Result<(), Error> {
        if let Err(error) = self.accept(listener) {
            let rank = self.job.rank;
            return Err(self.abort(StepFailure::Own { rank, error }));
        }
        self.poll();
        std::thread::sleep(POLL);
        Ok(())
    }

    fn accept(&mut self, listener: &TcpListener) -> Result<(), Error> {
        // The number is limited, so that existing connections are polled in between.
        for _ in 0..MOST {
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                // Pending connections must not use up this process's open files.
                Err(error) if is_exhausted(&error) && self.pending.close_one() => continue,
                Err(error) if is_exhausted(&error) => {
                    return Err(os("accepting a rank's connection")(error));
                }
                // There is no connection, or it is already closed.
                Err(_) => return Ok(()),
            };
            let Ok(link) = Connection::new(stream, self.job.silence) else {
                continue;
            };
            self.pending.push(PendingConnection {
                link,
                from: from.ip(),
                since: Instant::now(),
                hello: None,
            });
        }
        Ok(())
    }

    /// Reads all connections once.
    fn poll(&mut self) {
        for connection in self.pending.take() {
            self.process(connection);
        }
        self.admitted.retain(|rank, admitted| {
            // An admitted rank sends nothing before the `Welcome` frame.
            let is_connected = matches!(admitted.link.poll(), Ok(None));
            if !is_connected {
                tracing::warn!(
                    rank,
                    "a rank disconnected before all ranks were connected; it may connect again"
                );
            }
            is_connected
        });
    }

    fn process(&mut self, mut connection: PendingConnection) {
        let frame = match connection.link.poll() {
            Ok(Some(frame)) => frame,
            Ok(None) if connection.since.elapsed() < HANDSHAKE_TIMEOUT => {
                self.pending.push(connection);
                return;
            }
            Err(ConnectionError::Fault(fault)) => {
                return self.refuse((connection.link, connection.from, fault));
            }
            Err(_) if connection.hello.is_some() => {
                return self.refusals.add(connection.from, HUNG_UP);
            }
            Ok(None) | Err(_) => return,
        };
        let processed = match connection.hello.take() {
            None => self.challenge(connection, &frame),
            Some((hello, transcript)) => self.admit(connection, hello, transcript, &frame),
        };
        if let Err(refused) = processed {
            self.refuse(refused);
        }
    }

    /// Refuses a connection. This is not an error of this rank, since anyone can connect. If the other end is a rank, that rank
    /// is reported as missing.
    fn refuse(&mut self, (mut link, from, fault): Refused) {
        let reason = fault.to_string();
        self.refusals.add(from, &reason);
        let frame = Frame {
            kind: FrameKind::Refused,
            nonce: Nonce::default(),
            payload: reason.into_bytes(),
        };
        let _ = link.send(&frame, soon());
    }

    /// Answers the first message of a connection by a request for a proof.
    fn challenge(
        &mut self,
        mut connection: PendingConnection,
        frame: &Frame,
    ) -> Result<(), Refused> {
        let hello = match Hello::check(frame, &self.own) {
            Ok(hello) => hello,
            Err(fault) => return Err((connection.link, connection.from, fault)),
        };
        // If there is no random number, or the connection is closed, the connection is dropped.
        let Ok(challenge) = Challenge::new(self.job) else {
            return Ok(());
        };
        if connection.link.send(&challenge.frame(), soon()).is_ok() {
            let transcript = Transcript::new(&hello, &challenge);
            connection.hello = Some((hello, transcript));
            self.pending.push(connection);
        }
        Ok(())
    }

    /// Admits a rank whose proof is valid.
    fn admit(
        &mut self,
        connection: PendingConnection,
        hello: Hello,
        transcript: Transcript,
        frame: &Frame,
    ) -> Result<(), Refused> {
        let (link, from) = (connection.link, connection.from);
        if let Err(fault) = transcript.check_proof(frame, self.job) {
            return Err((link, from, fault));
        }
        let rank = hello.rank;
        // The check of the first message ensures a rank above the own rank.
        if self.admitted.contains_key(&rank) {
            return Err((link, from, ProtocolFault::DuplicateRank { rank }));
        }
        let admitted = AdmittedRank {
            link,
            host: hello.host,
            transcript,
        };
        self.admitted.insert(rank, admitted);
        Ok(())
    }

    /// Sends each admitted rank a `Welcome` frame. Returns the group, and its ranks in the job.
    fn welcome(mut self, deadline: Instant) -> Result<(TcpGroup, Vec<u32>), Error> {
        let nonce = random_bytes()?;
        let others = self.admitted.values().map(|admitted| &admitted.host[..]);
        let hosts: Vec<&[u8]> = [&self.own.host[..]].into_iter().chain(others).collect();
        let welcomed = Admitted {
            ranks: [self.job.rank]
                .into_iter()
                .chain(self.admitted.keys().copied())
                .collect(),
            hosts: HostMap::from_hosts(&hosts),
        };
        let mut left = None;
        for (rank, admitted) in &mut self.admitted {
            let welcome = admitted.transcript.welcome(self.job, nonce, &welcomed);
            if admitted.link.send(&welcome, deadline).is_err() {
                left.get_or_insert(*rank);
            }
        }
        if let Some(rank) = left {
            return Err(self.abort(StepFailure::Left { rank }));
        }
        let links = self.admitted.into_values().map(|mut admitted| {
            admitted.link.allow(RANK_BYTES);
            admitted.link
        });
        let links: Vec<_> = links.collect();
        let addresses = links.iter().filter_map(Connection::own_address);
        let network = self.job.network(addresses, &nonce);
        let group = TcpGroup::new((0, welcomed.hosts), nonce, links, network);
        Ok((group, welcomed.ranks))
    }

    /// Reports to all admitted ranks that `ranks` are missing.
    fn abort_without(&mut self, ranks: Vec<u32>) -> Error {
        let refused = self.refusals.texts();
        self.abort(StepFailure::Missing { ranks, refused })
    }

    /// Reports to all admitted ranks that this rank was stopped.
    fn stopped(&mut self) -> Error {
        self.abort(StepFailure::stopped(self.job.rank));
        Error::Aborted { cause: None }
    }

    /// Reports a failure to all admitted ranks.
    fn abort(&mut self, failure: StepFailure) -> Error {
        let links = self
            .admitted
            .values_mut()
            .map(|admitted| &mut admitted.link);
        announce(&failure, Nonce::default(), links);
        failure.into_error(STEP, self.job.timeout)
    }
}

type Refused = (Connection, IpAddr, ProtocolFault);

/// The reason if a connection closes instead of sending its proof: one of the two ends has a secret and the other end
/// has no secret.
const HUNG_UP: &str = "it closed the connection when it was asked for a proof; set MKERNEL_SECRET to the same value on all ranks";

/// Returns a deadline for a frame to a pending connection. The frame is so short that the buffer of a new socket has
/// room for it.
fn soon() -> Instant {
    Instant::now() + Duration::from_millis(100)
}
