//! The functions that kernels call. The C++ headers of the simulator reach them through a table.
//!
//! ```text
//! table                          the table, in the order of templates/simulator/mk/calls.cuh
//! threads, memory, copies, mma   the functions by subject
//! context                        how they reach the machine and suspend the running fiber
//! ```

mod context;
mod copies;
mod memory;
mod mma;
mod table;
mod threads;

pub(super) use context::{enter, faulted, in_kernel, started};
