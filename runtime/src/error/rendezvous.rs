//! [`RendezvousError`]: why the processes of a job cannot connect to rank 0.

use std::sync::Arc;
use std::time::Duration;

/// Why the processes of a job cannot connect to rank 0.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Rank 0 cannot resolve its own address, or cannot listen on it.
    #[error(
        "rank 0 cannot listen on {address}. If another job uses the port, set MKERNEL_PORT to a free one"
    )]
    Listen {
        /// The address and the port.
        address: String,
        /// The error of the system call.
        source: Arc<std::io::Error>,
    },
    /// The host of rank 0 cannot be resolved or does not accept connections.
    #[error(
        "cannot connect to rank 0 at {address} within {waited:?}. Check that rank 0 runs, and check MASTER_ADDR and \
         MASTER_PORT (or MKERNEL_PORT)"
    )]
    Connect {
        /// The name or address that was given, and the port.
        address: String,
        /// How long this rank tried.
        waited: Duration,
        /// The last error: of the name look-up, or of each address.
        source: Arc<std::io::Error>,
    },
}
