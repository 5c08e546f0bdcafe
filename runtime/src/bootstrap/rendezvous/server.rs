//! Rank 0's side of the rendezvous: it listens until all ranks have completed the handshake, then sends each rank a `Welcome`
//! frame.
//!
//! Any program can connect. A connection uses a bounded amount of memory for a bounded time, and no connection waits
//! for another.

use super::handshake::{Challenge, Hello, Transcript};
use super::job::{HANDSHAKE_TIMEOUT, Job, STEP};
use super::pending::{MOST, PendingConnection, PendingConnections};
use super::refusals::Refusals;
use crate::bootstrap::failure::StepFailure;
use crate::bootstrap::fds::random_bytes;
use crate::bootstrap::files::{is_exhausted, os};
use crate::bootstrap::host_map::HostMap;
use crate::bootstrap::limits::POLL;
use crate::bootstrap::step_frames::announce;
use crate::bootstrap::tcp::TcpGroup;
use crate::bootstrap::wire::{Connection, ConnectionError, Frame, FrameKind, Nonce, RANK_BYTES};
use crate::error::{Error, ProtocolFault};
use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

/// Waits until all ranks are connected.
pub(crate) fn accept_ranks(job: &Job, listener: &TcpListener) -> Result<TcpGroup, Error> {
    let deadline = Instant::now() + job.timeout;
    let mut server = Server {
        job,
        own: Hello::new(job)?,
        pending: PendingConnections::default(),
        refusals: Refusals::default(),
        admitted: (1..job.world).map(|_| None).collect(),
    };
    while !server.missing().is_empty() {
        if Instant::now() >= deadline {
            let (ranks, refused) = (server.missing(), server.refusals.texts());
            return Err(server.abort(StepFailure::Missing { ranks, refused }));
        }
        if let Err(error) = server.accept(listener) {
            return Err(server.abort(StepFailure::Own { rank: 0, error }));
        }
        server.poll();
        std::thread::sleep(POLL);
    }
    server.welcome(deadline + HANDSHAKE_TIMEOUT)
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
    /// The admitted ranks, by rank, from rank 1 on.
    admitted: Vec<Option<AdmittedRank>>,
}

impl Server<'_> {
    fn missing(&self) -> Vec<u32> {
        let admitted = (1..).zip(&self.admitted);
        admitted
            .filter(|(_, rank_connection)| rank_connection.is_none())
            .map(|(rank, _)| rank)
            .collect()
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
        for (rank, slot) in (1..).zip(&mut self.admitted) {
            let Some(rank_connection) = slot else {
                continue;
            };
            // An admitted rank sends nothing before the `Welcome` frame.
            if !matches!(rank_connection.link.poll(), Ok(None)) {
                tracing::warn!(
                    rank,
                    "a rank disconnected before all ranks were connected; it may connect again"
                );
                *slot = None;
            }
        }
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
        // The check of the first message ensures a rank from 1 to the last one.
        let slot = &mut self.admitted[rank as usize - 1];
        if slot.is_some() {
            return Err((link, from, ProtocolFault::DuplicateRank { rank }));
        }
        *slot = Some(AdmittedRank {
            link,
            host: hello.host,
            transcript,
        });
        Ok(())
    }

    fn welcome(mut self, deadline: Instant) -> Result<TcpGroup, Error> {
        let nonce = random_bytes()?;
        let hosts: Vec<&[u8]> = std::iter::once(&self.own.host)
            .chain(
                self.admitted
                    .iter()
                    .flatten()
                    .map(|rank_connection| &rank_connection.host),
            )
            .map(Vec::as_slice)
            .collect();
        let host_map = HostMap::from_hosts(&hosts);
        let mut left = None;
        for (rank, rank_connection) in (1..).zip(self.admitted.iter_mut().flatten()) {
            let welcome = rank_connection
                .transcript
                .welcome(self.job, nonce, &host_map);
            if rank_connection.link.send(&welcome, deadline).is_err() {
                left.get_or_insert(rank);
            }
        }
        if let Some(rank) = left {
            return Err(self.abort(StepFailure::Left { rank }));
        }
        let links: Vec<_> = self
            .admitted
            .into_iter()
            .flatten()
            .map(|mut rank_connection| {
                rank_connection.link.allow(RANK_BYTES);
                rank_connection.link
            })
            .collect();
        let addresses = links.iter().filter_map(Connection::own_address);
        let network = self.job.network(addresses, &nonce);
        let place = (self.job.rank, host_map);
        Ok(TcpGroup::new(place, nonce, links, network))
    }

    /// Reports a failure to all admitted ranks.
    fn abort(&mut self, failure: StepFailure) -> Error {
        let links = self
            .admitted
            .iter_mut()
            .flatten()
            .map(|rank_connection| &mut rank_connection.link);
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
