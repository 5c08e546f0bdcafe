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

pub(crate) fn listen(job: &Job) -> Result<TcpListener, Error> {
    let everywhere = || {
        let port = job.port;
        match job.secret {
            Some(_) => tracing::info!(port, "rank 0 listens on all interfaces"),
            None => tracing::warn!(
                port,
                "rank 0 listens on all interfaces without a secret, so any process that reaches the port can join as a rank; set MKERNEL_SECRET, or set MASTER_ADDR to an address of this host"
            ),
        }
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, job.port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, job.port)))
    };
    let bind = || {
        let found = addresses(job, Instant::now() + job.timeout)?;
        if job.several_hosts && is_own_name(job, &found) {
            return everywhere();
        }
        match TcpListener::bind(found.as_slice()) {
            // The name may belong to a gateway in front of this host.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => everywhere(),
            other => other,
        }
    };
    let listener = bind().and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(|source| match is_exhausted(&source) {
        true => os("listening for the ranks")(source),
        false => Error::Rendezvous(RendezvousError::Listen {
            address: format!("{}:{}", job.host, job.port),
            source: Arc::new(source),
        }),
    })
}

/// Returns whether a name resolves to the loopback interface, as the name of the own host does on Debian (127.0.1.1).
/// Other hosts resolve the name to an address on which rank 0 would not listen then.
fn is_own_name(job: &Job, found: &[SocketAddr]) -> bool {
    job.host.parse::<IpAddr>().is_err() && found.iter().all(|address| address.ip().is_loopback())
}
