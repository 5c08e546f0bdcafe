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
use crate::error::{Error, RendezvousError};
use address::Listening;
use client::join;
use job::Job;
use server::accept_ranks;

/// Connects the ranks of a job. Returns on every rank when all ranks are connected.
pub(crate) fn connect_ranks(job: &Job) -> Result<TcpGroup, Error> {
    raise_limit();
    if job.rank != 0 {
        return join(job);
    }
    let Listening {
        listener,
        is_elsewhere,
    } = address::listen(job)?;
    accept_ranks(job, &listener).map_err(|error| match error {
        Error::RanksMissing {
            ranks,
            waited,
            refused,
            ..
        } if is_elsewhere => Error::Rendezvous(RendezvousError::Elsewhere {
            address: job.address(),
            ranks,
            waited,
            refused,
        }),
        error => error,
    })
}
