//! The fabric of a rank: puts from kernels to GPUs of other nodes.
//!
//! The crate `mkernel-fabric` has the proxy and the transports. This module connects them to a GPU: the command ring
//! and the arrival words are in pinned memory, and the regions are in device memory. A node is a host whose NICs
//! transfer puts. The ranks of one host can also be divided into nodes, with emulated or real NICs between them;
//! kernels of one node then do not get the addresses of another node's memory.

mod arrivals;
mod connecting;
pub(crate) mod endpoint;
pub(crate) mod fabric_test;
pub(crate) mod fabric_test_load;
mod heartbeat;
mod kernel_memory;
pub(crate) mod nic_probe;
pub(crate) mod nic_settings;
pub(crate) mod nics;
pub(crate) mod node_map;
mod offers;
mod p2p_copy;
mod region;
mod ring;
pub(crate) mod transport;
