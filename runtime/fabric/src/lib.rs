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

pub mod error;
pub mod transport;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use error::{FabricError, Peer};
pub use transport::{
    DmaBuf, Event, Limits, Memory, MemoryKind, PeerId, PeerOffer, Place, RegionId, Transport, Write,
};
