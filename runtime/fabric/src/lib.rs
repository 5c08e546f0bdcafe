//! Puts between GPUs of different nodes: the host side of RDMA transfers that kernels start.
//!
//! ```text
//! kernel ─Command ring→ Proxy ─Write→ Transport → wire → Transport ─Event→ Proxy ─arrival words→ kernel
//! ```
//!
//! # Terms
//!
//! - An *endpoint* connects one GPU to the fabric. One proxy thread drives it.
//! - A *peer* is a GPU of another node with which the endpoint exchanges data.
//! - A *region* is a range of memory that NICs may read and peers may write. A region number means corresponding
//!   memory on every endpoint, but the address, the key and even the size may differ.
//! - A *put* copies bytes from a local region into a region of a peer. A kernel requests it by a *command*. A
//!   transport carries it as a *write with immediate data*.
//! - A *channel* is a one-way stream of puts from one endpoint to one peer.
//! - *Arrival s of channel c* means that all bytes of the first s puts of c are in the target's memory.
//! - A *rail* is one of the NICs of an endpoint. Rail i of an endpoint exchanges data with rail i of its peers.
//!
//! # Reading order
//!
//! [`transport`] is the contract of a NIC driver. [`flow_control`] and [`reorder`] are the protocol above it.
//! [`command_ring`] delivers the commands of kernels, and [`arrivals`] receives the arrivals. A [`builder`] creates
//! an [`endpoint`], which joins these parts, and [`proxy`] is the thread that drives it. [`emulated`] is a transport
//! in software. The feature `verbs` adds transports over NICs.

pub mod arrivals;
mod back_off;
pub mod builder;
mod command_check;
pub mod command_ring;
pub mod config;
mod control;
pub mod emulated;
pub mod endpoint;
pub mod endpoint_info;
pub mod error;
pub mod flow_control;
mod flush;
pub mod immediate;
mod in_flight;
pub mod peer_id;
mod peer_state;
pub mod proxy;
mod ready_peers;
pub mod reorder;
mod requests;
pub mod stats;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use arrivals::{Arrivals, HostArrivals};
pub use builder::EndpointBuilder;
pub use command_ring::{CommandProducer, HostRing};
pub use config::EndpointConfig;
pub use endpoint::Endpoint;
pub use error::FabricError;
pub use peer_id::{PeerId, PeerIdentity};
pub use proxy::{Proxy, ProxyOptions};
pub use stats::{EndpointStats, RailCounters, RailStats, StatsReader};
pub use transport::{
    DmaBuf, Event, Limits, MAX_REGIONS, MemoryKind, MemoryRange, PeerConnectInfo, RegionId,
    RegionOffset, Transport, Write,
};
