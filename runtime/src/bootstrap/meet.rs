//! Who meets, and where.

use super::files::{is_exhausted, os, raise_limit};
use super::gather::gather;
use super::join::join;
use super::secret::Secret;
use super::tcp::TcpGroup;
use crate::error::Error;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

pub(super) const STEP: &str = "rendezvous";

/// How long a connection may take to present itself.
pub(super) const HELLO: Duration = Duration::from_secs(5);

/// A job, as one of its processes knows it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub rank: u32,
    pub world: u32,
    /// Host name or address of rank 0.
    pub host: String,
    pub port: u16,
    /// What the launcher calls the job; ranks of differently named jobs don't meet.
    pub name: String,
    /// Whether ranks of other hosts must reach rank 0.
    pub several_hosts: bool,
    /// The same for all processes of a host, and for those of no other.
    pub host_id: String,
    /// What strangers don't know.
    pub secret: Option<Secret>,
    pub timeout: Duration,
    /// The deadline within which it is to be noticed that a host is gone.
    pub silence: Duration,
}

/// Returns on every rank when all have met.
pub(crate) fn meet(job: &Job) -> Result<TcpGroup, Error> {
    raise_limit();
    if job.rank == 0 {
        listen(job).and_then(|listener| gather(job, &listener))
    } else {
        join(job)
    }
}

/// The addresses of rank 0. Name servers that do not answer are given up at the deadline.
pub(super) fn addresses(job: &Job, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = job.host.parse::<IpAddr>() {
        return Ok(vec![(address, job.port).into()]);
    }
    let (tell, told) = mpsc::channel();
    let name = (job.host.clone(), job.port);
    let look_up = move || {
        let found = name.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // Who asked may have given up.
        let _ = tell.send(found);
    };
    // The C library's look-up takes as long as it likes.
    let thread = std::thread::Builder::new().name("mkernel-lookup".into());
    thread.spawn(look_up)?;
    let rest = deadline.saturating_duration_since(Instant::now());
    let silent = |_| io::Error::new(ErrorKind::TimedOut, "no name server has answered");
    let found = told.recv_timeout(rest).map_err(silent)??;
    match found.is_empty() {
        true => Err(io::Error::new(
            ErrorKind::NotFound,
            "the name has no address",
        )),
        false => Ok(found),
    }
}

pub(super) fn listen(job: &Job) -> Result<TcpListener, Error> {
    let everywhere = || {
        let port = job.port;
        match job.secret {
            Some(_) => tracing::info!(port, "rank 0 listens on all interfaces"),
            None => tracing::warn!(
                port,
                "rank 0 listens on all interfaces, and there is no secret: who reaches the port can be a rank; set MKERNEL_SECRET, or MASTER_ADDR to an address of this host"
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
            // The name may stand for a gateway in front of this host.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => everywhere(),
            other => other,
        }
    };
    let listener = bind().and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(|source| match is_exhausted(&source) {
        true => os("listening for the ranks")(source),
        false => Error::Listen {
            address: format!("{}:{}", job.host, job.port),
            source: Arc::new(source),
        },
    })
}

/// Whether a name, other than an address, leads to the loopback: as Debian resolves a host's own name, to 127.0.1.1.
/// Other hosts resolve it to an address that nobody would listen on.
fn is_own_name(job: &Job, found: &[SocketAddr]) -> bool {
    job.host.parse::<IpAddr>().is_err() && found.iter().all(|address| address.ip().is_loopback())
}
