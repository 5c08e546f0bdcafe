//! The fabric on a rank: puts of kernels to GPUs of other nodes.
//!
//! `mkernel-fabric` has the proxy and the transports; here is what ties them to a GPU: the ring and arrival words in pinned
//! memory, regions in device memory. Nodes are hosts, whose NICs carry puts; or ranks of one host are put into nodes, with
//! an emulated network or NICs between them, and kernels of a node get no address of another one's memory.

mod arrivals;
pub(crate) mod endpoint;
mod mover;
mod nics;
mod offers;
pub(crate) mod rails;
mod region;
mod ring;
mod signs;
mod test;
mod transport;

pub(crate) use nics::nic_gb_s;
pub use test::{FabricTest, FabricTestOptions, Load, Measured};
pub use transport::{NicOptions, Transport};
