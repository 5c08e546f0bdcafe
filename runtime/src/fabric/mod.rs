//! The fabric on a rank: puts of kernels to GPUs of other nodes.
//!
//! `mkernel-fabric` has the proxy and the transports; here is what ties them to a GPU: the ring and arrival words in pinned
//! memory, regions in device memory. Nodes and their network are emulated for now: ranks of one host are put into
//! nodes, and kernels of a node get no address of another one's memory.

mod arrivals;
mod endpoint;
mod mover;
mod offers;
mod rails;
mod ring;
mod test;

pub use test::{FabricTest, FabricTestOptions, Load, Measured};
