//! Transports over libibverbs: [`rc`] for InfiniBand and RoCE, [`efa`] for Amazon's EFA (feature `efa`).
//!
//! Both libraries are opened when a transport is made; a program that makes none needs neither. A put is one
//! RDMA_WRITE_WITH_IMM, so its arrival is told by the completion that the NIC writes after the bytes; no flag is ever
//! written by another request, and nothing is registered for relaxed ordering. Queue pairs belong to one peer each.
//!
//! ```text
//! endpoint ── tables of peers, regions, rails; the trait           rail ── device, port, completion queue
//!    lanes ── which lane a write takes                              └── device, gid, memory, queue, watch
//!       lane ── a queue pair to a peer and its account: rc or efa
//! ```

mod async_event;
mod completion_queue;
mod connect_info;
mod datapath;
mod device;
#[cfg(feature = "efa")]
mod efa;
mod efadv;
mod errno;
mod gid;
mod lane;
mod lanes;
mod library;
mod options;
mod queue_pair;
mod queue_pair_type;
mod rail;
mod rc;
mod registration;
mod transport;

pub use options::Options;

use crate::error::FabricError;
use crate::transport::Transport;

/// A transport over reliable connections: ConnectX and other NICs for InfiniBand and RoCE, and Soft-RoCE.
///
/// # Errors
///
/// [`FabricError::Config`] for the options; [`FabricError::Nic`] if there is no libibverbs or no fitting device.
pub fn rc(options: Options) -> Result<impl Transport, FabricError> {
    transport::VerbsTransport::<rc::ReliableConnection>::new(options)
}

/// A transport over SRD queue pairs of EFA.
///
/// # Errors
///
/// [`FabricError::Config`] for the options; [`FabricError::Nic`] if there is no libefa or no device that can write to
/// memory of peers.
#[cfg(feature = "efa")]
pub fn efa(options: Options) -> Result<impl Transport, FabricError> {
    transport::VerbsTransport::<efa::ScalableDatagram>::new(options)
}
