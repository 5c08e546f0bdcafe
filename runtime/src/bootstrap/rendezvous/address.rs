//! The addresses of rank 0, and the socket on which it listens.

use super::job::Job;
use crate::bootstrap::files::{is_exhausted, os};
use crate::error::{Error, RendezvousError};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// Returns the addresses of rank 0. A look-up that does not answer is abandoned at the deadline.
pub(crate) fn addresses(job: &Job, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = job.host.parse::<IpAddr>() {
        return Ok(vec![(address, job.port).into()]);
    }
    let (sender, receiver) = mpsc::channel();
    let name = (job.host.clone(), job.port);
    let look_up = move || {
        let found = name.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // The receiver may have stopped waiting.
        let _ = sender.send(found);
    };
    // The look-up of the C library has no timeout, so it runs in a thread of its own.
    let thread = std::thread::Builder::new().name("mkernel-lookup".into());
    thread.spawn(look_up)?;
    let rest = deadline.saturating_duration_since(Instant::now());
    let silent = |_| io::Error::new(ErrorKind::TimedOut, "no name server answered");
    let found = receiver.recv_timeout(rest).map_err(silent)??;
    match found.is_empty() {
        true => Err(io::Error::new(
            ErrorKind::NotFound,
            "the name has no address",
        )),
        false => Ok(found),
    }
}

/// The socket on which rank 0 listens.
pub(crate) struct Listening {
    pub listener: TcpListener,
    /// Whether the other ranks connect to an address that this host does not have.
    pub is_elsewhere: bool,
}

pub(crate) fn listen(job: &Job) -> Result<Listening, Error> {
    let found = addresses(job, Instant::now() + job.timeout).map_err(|e| look_up_error(job, e))?;
    let bound = match job.several_hosts && is_own_name(job, &found) {
        true => listen_everywhere(job).map(|listener| (listener, false)),
        false => match TcpListener::bind(found.as_slice()) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                tracing::warn!(
                    address = job.address(),
                    "rank 0 runs on this host, which does not have the address that the other ranks connect to; they reach rank 0 only through a gateway that has it"
                );
                listen_everywhere(job).map(|listener| (listener, true))
            }
            other => other.map(|listener| (listener, false)),
        },
    };
    let bound = bound.and_then(|(listener, is_elsewhere)| {
        listener.set_nonblocking(true)?;
        Ok(Listening {
            listener,
            is_elsewhere,
        })
    });
    bound.map_err(|source| match is_exhausted(&source) {
        true => os("listening for the ranks")(source),
        false => Error::Rendezvous(RendezvousError::Listen {
            address: job.address(),
            source: Arc::new(source),
        }),
    })
}

/// Listens on all interfaces.
fn listen_everywhere(job: &Job) -> io::Result<TcpListener> {
    let port = job.port;
    match job.secret {
        Some(_) => tracing::info!(port, "rank 0 listens on all interfaces"),
        None => tracing::warn!(
            port,
            "rank 0 listens on all interfaces without a secret, so any process that reaches the port can join as a rank; set MKERNEL_SECRET, or set MASTER_ADDR to an address of this host"
        ),
    }
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}

/// Returns the error of a look-up of rank 0's host.
pub(crate) fn look_up_error(job: &Job, source: io::Error) -> Error {
    match is_exhausted(&source) {
        true => os("looking up the host of rank 0")(source),
        false => Error::Rendezvous(RendezvousError::LookUp {
            host: job.host.clone(),
            source: Arc::new(source),
        }),
    }
}

/// Returns whether a name resolves to the loopback interface, as the name of the own host does on Debian (127.0.1.1). Other
/// hosts resolve the name to another address, at which a socket on the loopback interface does not listen.
fn is_own_name(job: &Job, found: &[SocketAddr]) -> bool {
    job.host.parse::<IpAddr>().is_err() && found.iter().all(|address| address.ip().is_loopback())
}
