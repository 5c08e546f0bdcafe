//! [`BegunCalls`]: how many calls of an operator each rank has begun.

use crate::driver::{WORDS_OF_A_READ, WordReader};
use crate::error::Error;
use crate::simulation::OperatorLaunches;
use crate::workspace::Workspace;
use mkernel_spec::abi::State;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

/// How long a read may take. Nothing on the GPU delays it but other copies.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// How many calls of an operator each rank has begun, replays of graphs included.
pub(crate) enum BegunCalls {
    /// The simulator counts the launches of all ranks.
    Simulated(Arc<OperatorLaunches>),
    /// Each rank counts its calls in its workspace, which the ranks of its node have mapped. The memory outlives the rank.
    Mapped {
        reader: Arc<WordReader>,
        workspace: Arc<Workspace>,
        /// The first rank of the node.
        first_rank: u32,
    },
}

impl BegunCalls {
    /// Returns the calls that ranks have begun, with the rank. Ranks that this process cannot see are absent.
    pub fn read(&self) -> Result<Vec<(u32, u32)>, Error> {
        match self {
            // The counts on the device wrap around at 2^32.
            Self::Simulated(launches) => {
                let counts = launches.begun().into_iter().map(|calls| calls as u32);
                Ok((0..).zip(counts).collect())
            }
            Self::Mapped {
                reader,
                workspace,
                first_rank,
            } => {
                let addresses = workspace.addresses();
                let mapped = addresses.iter().take_while(|address| **address != 0);
                let epochs: Vec<u64> = mapped
                    .take(WORDS_OF_A_READ)
                    .map(|address| address + offset_of!(State, epoch) as u64)
                    .collect();
                // SAFETY: every workspace begins with its state. It stays mapped as long as this value, and after an error
                // for ever.
                let counts = unsafe { reader.read(&epochs, READ_TIMEOUT) };
                let counts = counts.inspect_err(|_| std::mem::forget(workspace.clone()))?;
                Ok((*first_rank..).zip(counts).collect())
            }
        }
    }
}
