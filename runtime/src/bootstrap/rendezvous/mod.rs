//! The rendezvous: how the processes of a job connect to rank 0.

mod address;
pub(crate) mod client;
pub(crate) mod handshake;
pub(crate) mod job;
mod pending;
mod refusals;
pub(crate) mod secret;
pub(crate) mod server;

#[cfg(test)]
pub(crate) use address::listen;

use super::files::raise_limit;
use super::tcp::TcpGroup;
use crate::error::Error;
use client::join;
use job::Job;
use server::accept_ranks;

/// Connects the ranks of a job. Returns on every rank when all ranks are connected.
pub(crate) fn connect_ranks(job: &Job) -> Result<TcpGroup, Error> {
    raise_limit();
    if job.rank == 0 {
        address::listen(job).and_then(|listener| accept_ranks(job, &listener))
    } else {
        join(job)
    }
}
