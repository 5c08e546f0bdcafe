//! The CUDA driver on simulated GPUs. cudarc calls the functions of this module in place of the real driver's.
//!
//! ```text
//! stub           a library that offers these functions to cudarc under the driver's name
//! api/           the functions by subject, with the checks of their arguments
//! registry       the simulated hosts of this process, and the host of each GPU and handle
//! engine         the thread that drives a host's world: when work starts, and when simulated time passes
//! host           one simulated host: its state, and how threads of the program wait for it
//! graph          its graphs, and the captures that create them
//! stream         one stream and its operations
//! streams        its streams: the order of their operations
//! residency      the SMs that running kernels hold
//! launch_count   how many launches of a kernel have begun
//! completion     the ends of operations, and points in streams
//! address_space  its memory: what is allocated, reserved and mapped
//! callback       functions of the program, during which it must not call the driver
//! user_object    objects of the program that graphs retain
//! result         error codes
//! ```
//!
//! A process has [`HOSTS`] hosts of [`DEVICES_PER_HOST`] GPUs. Each host has a world and a thread of its own, so jobs
//! on several hosts run concurrently. GPUs can access each other only within a host.

mod address_space;
mod api;
mod callback;
mod completion;
mod engine;
mod graph;
mod host;
mod launch_count;
mod registry;
mod residency;
mod result;
mod stream;
mod streams;
mod stub;
mod user_object;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use host::HostOptions;
pub use launch_count::LaunchCount;
pub use registry::{BusyGuard, ClaimError, DEVICES_PER_HOST, HOSTS, SimulatedHost};
pub use stub::{ActivateError, activate};

// Tests of the driver use a small world of their own, whose behaviour is easy to predict.
#[cfg(test)]
use fake::{Image, Moment, Work, World};

use crate::world::{Advance, Finding, HostFunction, Outcome, PhysicalId, TaskId};
#[cfg(not(test))]
use crate::world::{Image, Moment, Work, World};
