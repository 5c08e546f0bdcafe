//! [`FabricError`]: the reason why the fabric failed, and the peer that the failure is about.

use crate::peer_id::{PeerId, PeerIdentity};
use std::time::Duration;

impl FabricError {
    /// Returns the peer that the error is about, or `None` if the error is not about a peer.
    #[must_use]
    pub fn peer(&self) -> Option<PeerId> {
        match self {
            Self::ConnectInfo { peer, .. }
            | Self::RegionInfo { peer, .. }
            | Self::Connect { peer, .. }
            | Self::Lost { peer, .. }
            | Self::PeerClosed { peer }
            | Self::PeerAborted { peer, .. }
            | Self::Timeout { peer, .. }
            | Self::Protocol { peer, .. } => Some(peer.id),
            _ => None,
        }
    }
}

/// The reason why the fabric stopped or did not start.
///
/// After an error the endpoint is unusable, except after [`Register`](Self::Register). The kernels of its job have been made to abort, and the job has to end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Invalid sizes or options, all in one error.
    #[error("the fabric cannot be configured: {}", .0.join("; "))]
    Config(Vec<String>),
    /// The transport cannot register this memory as a region.
    #[error("cannot register {bytes} bytes of memory at {address:#x}: {reason}")]
    Register {
        /// The address of the memory.
        address: u64,
        /// The size of the memory in bytes.
        bytes: u64,
        /// The cause, and a remedy.
        reason: String,
    },
    /// The connection info of a peer is damaged, has another version, or does not match this endpoint.
    #[error("the connection info of {peer} is invalid: {reason}")]
    ConnectInfo {
        /// The peer that sent the info.
        peer: PeerIdentity,
        /// The fault of the info.
        reason: String,
    },
    /// The description of a peer's region is damaged, has another version, or does not match this endpoint.
    #[error("the region of {peer} cannot be used: {reason}")]
    RegionInfo {
        /// The peer that sent the description.
        peer: PeerIdentity,
        /// The fault of the description.
        reason: String,
    },
    /// A peer could not be connected by the deadline.
    #[error("cannot connect to {peer}: {reason}")]
    Connect {
        /// The peer.
        peer: PeerIdentity,
        /// The cause.
        reason: String,
    },
    /// A kernel posted an invalid command. This is a defect of the kernel or of its plan.
    #[error("command {index} of a kernel is invalid: {field} = {value}, but {limit}")]
    Command {
        /// The index of the command in the ring, counted from the first command, modulo 2^32.
        index: u32,
        /// The name of the invalid field.
        field: &'static str,
        /// The value of the field.
        value: u64,
        /// The limit that the value violates.
        limit: String,
    },
    /// The connection to a peer broke, and the peer had not sent a close.
    #[error("{peer} is lost: {reason}; check the log of that rank first")]
    Lost {
        /// The peer.
        peer: PeerIdentity,
        /// The cause that the transport reported.
        reason: String,
    },
    /// A kernel put to a peer that had already closed its endpoint.
    #[error(
        "{peer} has closed its endpoint, but this endpoint still puts to it; check that all ranks make the same calls"
    )]
    PeerClosed {
        /// The peer.
        peer: PeerIdentity,
    },
    /// A peer aborted because another endpoint is lost. The lost endpoint need not be a peer of this endpoint.
    #[error(
        "{peer} aborted because rank {lost_rank} is lost; check the log of rank {lost_rank} first"
    )]
    PeerAborted {
        /// The peer that reported the loss.
        peer: PeerIdentity,
        /// The number of the lost rank.
        lost_rank: u32,
    },
    /// A peer did not respond while this endpoint waited for it.
    #[error(
        "{peer} did not respond for {} ms while this endpoint waited for {awaited} (limit {} ms); \
         check that its process is alive and that the network between the nodes is up",
        waited.as_millis(), limit.as_millis()
    )]
    Timeout {
        /// The peer.
        peer: PeerIdentity,
        /// The awaited event.
        awaited: &'static str,
        /// The time that the endpoint waited.
        waited: Duration,
        /// The deadline of the endpoint.
        limit: Duration,
    },
    /// A peer violated the protocol.
    #[error("{peer} violated the protocol: {reason}; check that all nodes run the same build")]
    Protocol {
        /// The peer.
        peer: PeerIdentity,
        /// The violation.
        reason: String,
    },
    /// This endpoint's own NIC, driver or operating system failed.
    #[error("the NIC of this endpoint failed: {reason}")]
    Nic {
        /// The message of the NIC, the driver or the operating system.
        reason: String,
    },
    /// A shutdown did not complete in time.
    #[error("the shutdown timed out after {} ms with {pending} puts not completed", limit.as_millis())]
    NotDrained {
        /// The number of puts that may not have completed.
        pending: u64,
        /// The time limit of the shutdown.
        limit: Duration,
    },
}
