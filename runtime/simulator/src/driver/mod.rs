//! The CUDA driver over simulated GPUs: what cudarc calls, as functions of this crate.
//!
//! ```text
//! stub      a library that hands these functions to cudarc under the driver's name
//! api/      the functions, by subject; they check what they are given
//! registry  the simulated hosts of this process, and which GPUs and handles belong to which
//! host      one of them: its state, and how threads of the program wait for it
//! engine    the thread that drives its world: when work starts, and when simulated time passes
//! queue     its streams: what comes after what
//! graph     its graphs, and the captures that make them
//! memory    its memory: what is mapped where
//! ```
//!
//! A process has [`HOSTS`] hosts of [`DEVICES_PER_HOST`] GPUs. Each has a world and a thread of its own, so jobs on
//! several hosts run side by side. GPUs access each other inside a host only.

mod api;
mod engine;
mod graph;
mod host;
mod memory;
mod queue;
mod registry;
mod stub;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use registry::{ClaimError, DEVICES_PER_HOST, HOSTS, HostOptions, SimulatedHost, Watch};
pub use stub::{ActivateError, activate};

// Tests of the driver's own logic use a world that is a few lines long.
#[cfg(test)]
use fake::{Image, Moment, Work, World};

use crate::world::{Advance, Finding, Outcome, PhysicalId, TaskId};
#[cfg(not(test))]
use crate::world::{Image, Moment, Work, World};
use cudarc::driver::sys::CUresult as Code;

/// What a function of the driver says.
type Result<T> = std::result::Result<T, Code>;
