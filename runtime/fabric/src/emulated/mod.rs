//! NICs in software, with configurable bandwidth, latency and faults. They serve tests, and several nodes on one
//! host.
//!
//! The sending NIC puts a write on the [`Wire`] at once, together with its arrival time by the model. The
//! [`CopyEngine`] of the receiver copies the bytes in the meantime. The arrival is reported when the copy has
//! completed and the arrival time has come. A copy therefore takes no extra time unless it takes longer than the
//! modelled network. The completion follows one latency after the peer's acknowledgement.

mod clock;
mod copy_engine;
pub mod frame;
mod nic_model;
mod peer_link;
mod pending;
mod slab;
mod transport;
mod wire;

pub use clock::{Clock, VirtualClock};
pub use copy_engine::{CopyEngine, CopyStatus, HostCopyEngine};
pub use frame::MAX_WRITE_BYTES;
pub use nic_model::{Failure, Faults, NicModel};
pub use transport::EmulatedTransport;
pub use wire::{Pipe, Wire, pipe};
