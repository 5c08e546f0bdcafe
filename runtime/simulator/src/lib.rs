//! Simulated GPUs: emitted kernels, unchanged, run on the CPU under a seeded scheduler that finds races and deadlocks.
//!
//! ```text
//! driver      the CUDA driver's functions, for streams, events, graphs and memory of simulated GPUs
//! tensor_map  what TMA is told of a matrix
//! world       the GPUs of one simulated host: memory, CTAs, their threads as fibers, the order of memory
//! ```
//!
//! [`activate`] makes cudarc use this driver, for the rest of the process. Then [`SimulatedHost::claim`] gives GPUs.

mod driver;
pub mod tensor_map;
pub mod world;

pub use world::host_bytes;

pub use driver::{
    ActivateError, ClaimError, DEVICES_PER_HOST, HOSTS, HostOptions, SimulatedHost, Watch, activate,
};
