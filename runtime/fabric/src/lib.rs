//! Puts between GPUs of different nodes.
//!
//! ```text
//! kernel ─Command ring→ Proxy ─Write→ Transport → wire → Transport ─Event→ Proxy ─arrival words→ kernel
//! ```
//!
//! Terms. An *endpoint* is one GPU's end of the fabric; one proxy thread drives it. A *peer* is a GPU of another node
//! that it talks to. A *region* is a range of memory that NICs may read and peers may write; its number means the
//! counterpart of the same memory on each endpoint, though address, key and even size may differ. A *channel* is a
//! one-way stream of puts from one endpoint to one peer. *Arrival s of channel c*: the first s puts of c are wholly in
//! the target's memory.
//!
//! Reading order: [`transport`] is the contract; [`flow_control`] and [`reorder`] are the protocol above it; [`command_ring`] is where
//! commands come from, [`arrivals`] where arrivals go; [`builder`] makes an [`endpoint`], which joins them, [`proxy`] is
//! its thread; [`emulated`] is a transport in software, `verbs` (a feature) has those over NICs.

pub mod arrivals;
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
pub mod immediate;
mod in_flight;
pub mod peer_id;
mod peer_state;
pub mod proxy;
mod ready_peers;
pub mod reorder;
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
pub use transport::{
    DmaBuf, Event, Limits, MemoryKind, MemoryRange, PeerConnectInfo, RegionId, RegionOffset,
    Transport, Write,
};
