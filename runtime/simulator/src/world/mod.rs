//! The GPUs of one simulated host. [`World`] runs kernels and copies. One thread drives it, and nothing in it blocks.
//!
//! ```text
//! simulation, scheduler        World: its interface, and the loop that decides what runs next
//! launch, signals              the start of kernels, and the handlers of processor faults
//! calls                        the functions that kernels call, in the order of the C++ headers' table
//! access, barrier, tma, ...    the operations of kernels on the machine, one subject per module
//! machine                      everything that kernels can observe
//! state, shadow, report, ...   the parts of the machine, without knowledge of the whole
//! interface                    options, work, outcomes and findings
//! clock, image, ...            vector clocks, and loaded kernels
//! ```
//!
//! A module imports only from modules in its own line or in a line below it.

mod access;
mod barrier;
mod calls;
mod clock;
mod cluster;
mod collective;
mod cp_async;
mod fiber;
mod findings;
mod host_copies;
mod image;
mod interface;
mod launch;
mod launch_end;
mod machine;
mod matrix;
mod memory;
mod mma;
mod mma_operand;
mod mma_sum;
mod overlap;
mod processor_fault;
mod report;
mod scheduler;
mod shadow;
mod signals;
mod simulation;
mod speeds;
mod stamp;
mod state;
mod sync;
mod tensor;
mod tma;
mod tma_completion;

pub use image::Image;
pub use interface::{Advance, Finding, HostFunction, Moment, Options, Outcome, TaskId, Work};
pub use memory::{PhysicalId, host_bytes};
pub use simulation::World;
pub use state::random::Random;
