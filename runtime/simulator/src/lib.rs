//! Simulated GPUs. Emitted kernels run unchanged on the CPU, under a seeded scheduler that finds races and deadlocks.
//!
//! ```text
//! driver      the functions of the CUDA driver: streams, events, graphs and memory of simulated GPUs
//! tensor_map  tensor maps, which describe the copies of TMA
//! world       the GPUs of one simulated host: memory, CTAs, threads as fibers, and the order of memory accesses
//! ```
//!
//! [`activate`] makes cudarc use this driver for the rest of the process. [`SimulatedHost::claim`] then provides GPUs.

mod driver;
mod memory_file;
pub mod tensor_map;
pub mod world;

pub use world::host_bytes;

pub use driver::{
    ActivateError, BusyGuard, ClaimError, DEVICES_PER_HOST, HOSTS, HostOptions, LaunchCount,
    SimulatedHost, activate,
};
