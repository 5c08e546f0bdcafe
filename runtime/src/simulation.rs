//! Jobs on simulated GPUs.

#[cfg(feature = "simulator")]
mod calls;
#[cfg(feature = "simulator")]
mod job;
#[cfg(not(feature = "simulator"))]
#[path = "simulation/not_built.rs"]
mod job;
mod options;

pub(crate) use job::{BusyGuard, OperatorLaunches, SimulatedJob, activate};
pub(crate) use options::MAX_RANKS;
pub use options::Simulation;
