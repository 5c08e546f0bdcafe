//! Simulated GPUs: emitted kernels, unchanged, run on the CPU under a seeded scheduler that finds races and deadlocks.
//!
//! ```text
//! driver   the CUDA driver's functions, for streams, events, graphs and memory of simulated GPUs
//! world    the GPUs of one simulated host: memory, CTAs, their threads as fibers, the order of memory
//! ```

pub mod tensor_map;
pub mod world;
