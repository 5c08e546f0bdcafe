//! [`SimulatorError`]: the reason why simulated GPUs cannot be used.

use super::causes::with_causes;
use std::sync::Arc;

/// The reason why simulated GPUs cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulatorError {
    /// The crate was built without its feature `simulator`.
    #[error(
        "this program was built without simulated GPUs. Add mkernel's feature \"simulator\", or set MKERNEL_DEVICE=gpu"
    )]
    NotBuilt,
    /// The simulated driver cannot be activated, or has no room for another job.
    #[error("simulated GPUs cannot be used: {}", with_causes(&**.0))]
    Driver(Arc<dyn std::error::Error + Send + Sync>),
    /// An option of [`Simulation`](crate::Simulation) is out of range.
    #[error("simulated GPUs cannot have {field} = {value}; it should be {expected}")]
    Option {
        /// The name of the option.
        field: &'static str,
        /// The value of the option.
        value: u64,
        /// The range of valid values.
        expected: &'static str,
    },
    /// Several processes of one host cannot share simulated GPUs.
    #[error(
        "{world} processes of a host cannot share simulated GPUs. Start one process that has all ranks \
         (Communicator::local or Communicator::simulated), or one process on each host"
    )]
    Processes {
        /// The number of ranks of the host, as far as it is known.
        world: u32,
    },
}
