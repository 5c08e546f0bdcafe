//! Transports over libibverbs: [`rc()`] for InfiniBand and RoCE, and [`efa()`] for Amazon's EFA (feature `efa`).
//!
//! The libraries are opened when a transport is created, so a program that creates none needs neither. A put is one
//! RDMA_WRITE_WITH_IMM. Its arrival is reported by the completion that the NIC writes after the bytes, and with the option
//! [`flush`](Options::flush) by the completion of a read that the NIC makes afterwards. No flag is ever written by another
//! request.
//!
//! A queue pair of RC is connected to one peer, and the RC queue pairs of a NIC share one receive queue. A queue pair of SRD
//! serves all peers, so the number of SRD queue pairs of a NIC does not grow with the number of peers.
//!
//! # Terms
//!
//! - A *rail* is an open NIC of the endpoint, with a port and a completion queue.
//! - A *lane* is one queue pair on one rail, with a record of the requests posted on it. A peer has at least one lane on
//!   each rail. All peers may share this lane.
//! - The *share* of a peer is the number of receives that its writes may use at once on each rail.
//!
//! # Files
//!
//! ```text
//! transport ── tables of peers, regions, rails; implements Transport  open ── which NICs, and the depth of queues
//! flushing ── holds arrivals until a flusher has read                    │
//! datapath ── posts writes, polls completions                           └── rail ── device, port, completion queue
//!    lanes ── which lane a write takes                                       └── device, gid, registration,
//!       lane ── a queue pair and its posted writes                              completion_queue, async_event
//!          queue_pair_type ── what differs between rc and efa; queue_pair, receives: what they share
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
mod flusher;
mod flushing;
mod gid;
mod lane;
mod lanes;
mod library;
mod open;
mod options;
mod queue_pair;
mod queue_pair_type;
mod rail;
mod rc;
mod reader;
mod receives;
mod region_info;
mod registration;
mod transport;

pub use options::{MAX_PEER_TIMEOUT, Options};

use crate::error::FabricError;
use crate::transport::Transport;

/// Creates a transport over reliable connections (RC) of InfiniBand NICs, RoCE NICs such as ConnectX, or Soft-RoCE.
///
/// # Errors
///
/// [`FabricError::Config`] for invalid options. [`FabricError::Nic`] if libibverbs or a suitable device is missing.
pub fn rc(options: Options) -> Result<impl Transport, FabricError> {
    transport::VerbsTransport::<rc::ReliableConnection>::new(options)
}

/// Creates a transport over SRD queue pairs of EFA.
///
/// # Errors
///
/// [`FabricError::Config`] for invalid options. [`FabricError::Nic`] if libefa is missing, or if no device can write
/// to the memory of peers.
#[cfg(feature = "efa")]
pub fn efa(options: Options) -> Result<impl Transport, FabricError> {
    transport::VerbsTransport::<efa::ScalableDatagram>::new(options)
}
