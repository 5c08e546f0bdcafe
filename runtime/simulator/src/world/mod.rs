//! The GPUs of one simulated host. [`World`] runs kernels and copies. One thread drives it, and nothing in it blocks.
//!
//! ```text
//! simulation, scheduler   World: its interface, and the loop that decides what runs next
//! calls                   the functions that kernels call, in the order of the C++ headers' table
//! launch, access, ...     the operations of kernels on the machine, one subject per module
//! machine                 everything that kernels can observe; findings adds the findings to it
//! state, shadow, report   the parts of the machine, without knowledge of the whole
//! clock, stamp, image     vector clocks, records of accesses, loaded kernels
//! interface               options, work, outcomes and findings
//! ```
//!
//! A module imports only from modules below it in this list, or from its neighbours without a circle.

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
pub use interface::{Advance, Finding, Moment, Options, Outcome, TaskId, Work};
pub use memory::{PhysicalId, host_bytes};
pub use simulation::World;
