//! Connects the ranks of a job and exchanges data between them: bytes between all ranks, and file descriptors within a
//! host.
//!
//! [`local`] connects threads of one process; `tcp` connects processes of one or several hosts. Every step has a
//! deadline, and its error names the ranks that are missing. All data of other processes is checked before it is used.

mod collective;
mod connection_error;
mod failure;
pub(crate) mod fds;
pub(crate) mod files;
mod group;
mod heartbeats;
mod host_map;
mod limits;
pub(crate) mod local;
mod owner;
mod rendezvous;
pub(crate) mod socket_pairs;
mod step_frames;
mod survivors;
mod tcp;
mod tcp_groups;
#[cfg(test)]
mod tests;
mod wait;
mod wire;

pub(crate) use collective::{Collective, Description, ensure_equal};
pub(crate) use failure::printable;
pub(crate) use heartbeats::{Heart, Heartbeats};
pub(crate) use host_map::HostMap;
pub use limits::MAX_CONTRIBUTION_BYTES;
pub(crate) use owner::Owner;
#[cfg(test)]
pub(crate) use rendezvous::connect_ranks;
pub(crate) use rendezvous::handshake::MAX_NAME_BYTES;
pub(crate) use rendezvous::job::Job;
pub(crate) use rendezvous::secret::Secret;
pub(crate) use wait::Stop;
