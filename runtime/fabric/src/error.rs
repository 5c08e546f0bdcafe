//! What can go wrong, and with whom.

use crate::peer_id::{PeerId, PeerIdentity};
use std::time::Duration;

impl FabricError {
    /// The peer that it is about, if it is about one.
    #[must_use]
    pub fn peer(&self) -> Option<PeerId> {
        match self {
            Self::ConnectInfo { peer, .. }
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

/// Why the fabric stopped, or did not start. After one of these an endpoint is of no more use: kernels of its job have
/// been told to abort, and the job is to end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Sizes or options that cannot be; all of them.
    #[error("the fabric cannot be set up: {}", .0.join("; "))]
    Config(Vec<String>),
    /// Memory that could not be made a region.
    #[error("memory of {bytes} bytes at {address:#x} could not be registered: {reason}")]
    Register {
        /// Where it starts.
        address: u64,
        /// Its size.
        bytes: u64,
        /// Why, and what to do.
        reason: String,
    },
    /// What a peer told of itself is damaged, of another version, or does not fit.
    #[error("the connection info of {peer} is invalid: {reason}")]
    ConnectInfo {
        /// Whose.
        peer: PeerIdentity,
        /// What is wrong in it.
        reason: String,
    },
    /// A peer could not be connected by the deadline.
    #[error("{peer} could not be connected: {reason}")]
    Connect {
        /// Which.
        peer: PeerIdentity,
        /// Why.
        reason: String,
    },
    /// A kernel posted a command that cannot be carried out: a mistake in the kernel or its plan.
    #[error("command {index}: {field} = {value}, but {limit}")]
    Command {
        /// Its index in the ring, counted from the first command, modulo 2^32.
        index: u32,
        /// Which field is wrong.
        field: &'static str,
        /// What it says.
        value: u64,
        /// What it may say.
        limit: String,
    },
    /// The connection to a peer is gone, and it did not say goodbye.
    #[error("{peer} is lost: {reason}; look at its own message first")]
    Lost {
        /// Which.
        peer: PeerIdentity,
        /// What the transport saw.
        reason: String,
    },
    /// A peer that said that it has ended was to get more.
    #[error(
        "{peer} has ended, as it said, but this endpoint still puts to it: do all ranks run the same work?"
    )]
    PeerClosed {
        /// Which.
        peer: PeerIdentity,
    },
    /// A peer has ended because another endpoint is lost, which need not be a peer of this one.
    #[error("{peer} gave up, since rank {lost_rank} is lost; look at its own message first")]
    PeerAborted {
        /// Who said so.
        peer: PeerIdentity,
        /// Who is lost.
        lost_rank: u32,
    },
    /// A peer gave no sign of life while this endpoint waited for it.
    #[error(
        "{peer} was silent for {} ms while this endpoint waited for {awaited} (limit {} ms): \
         it has ended, hangs, or the network between is down",
        waited.as_millis(), limit.as_millis()
    )]
    Timeout {
        /// Which.
        peer: PeerIdentity,
        /// For what.
        awaited: &'static str,
        /// How long.
        waited: Duration,
        /// The deadline.
        limit: Duration,
    },
    /// A peer sent what the protocol does not allow.
    #[error("{peer} broke the protocol: {reason}; do all nodes run the same version?")]
    Protocol {
        /// Who.
        peer: PeerIdentity,
        /// What it sent.
        reason: String,
    },
    /// This endpoint's own NIC, driver or operating system.
    #[error("the NIC of this endpoint failed: {reason}")]
    Nic {
        /// What it said.
        reason: String,
    },
    /// A shutdown that could not finish in time.
    #[error("{pending} puts had not left when the shutdown's deadline of {} ms passed", limit.as_millis())]
    NotDrained {
        /// Puts not known to have left.
        pending: u64,
        /// The deadline.
        limit: Duration,
    },
}
