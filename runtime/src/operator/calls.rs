//! [`BegunCalls`]: the number of calls of an operator that each rank has begun.

use crate::driver::{WORDS_OF_A_READ, WordReader};
use crate::error::Error;
use crate::simulation::OperatorLaunches;
use crate::symmetric::OwnMemory;
use crate::workspace::Workspace;
use mkernel_spec::abi::{Gate, State};
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

/// The time that a read may take. On the GPU, only other copies delay a read.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of calls of an operator that each rank has begun, including replays of graphs.
pub(crate) enum BegunCalls {
    /// The simulator counts the launches of all ranks.
    Simulated(Arc<OperatorLaunches>),
    /// Each rank counts its calls in its workspace, which the ranks of its node have mapped. The memory outlives the rank. A
    /// call is counted in the workspace when it is about to end. This rank's gate holds the name of the call that began last.
    Mapped {
        reader: Arc<WordReader>,
        workspace: Arc<Workspace>,
        gate: Arc<OwnMemory>,
        /// The number of the operator.
        operator: u32,
        /// The first rank of the node.
        first_rank: u32,
    },
}

impl BegunCalls {
    /// Returns pairs of a rank and the number of calls that it has begun. Ranks that this process cannot see are absent.
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
                gate,
                operator,
                first_rank,
            } => {
                let addresses = workspace.addresses();
                let mapped = addresses.iter().take_while(|address| **address != 0);
                let last = gate.address() + offset_of!(Gate, last) as u64;
                let epochs = mapped.map(|address| address + offset_of!(State, epoch) as u64);
                // Another call may begin between the reads of the two halves of the name. Then the two reads of the lower half
                // differ.
                let words = [last, last + 4, last].into_iter().chain(epochs);
                let words: Vec<u64> = words.take(WORDS_OF_A_READ).collect();
                // SAFETY: every workspace begins with its state. Workspaces and the gate stay mapped as long as this value,
                // and after an error for ever.
                let counts = unsafe { reader.read(&words, READ_TIMEOUT) };
                let counts =
                    counts.inspect_err(|_| std::mem::forget((workspace.clone(), gate.clone())))?;
                let [name, call, name_again, epochs @ ..] = counts.as_slice() else {
                    return Ok(Vec::new());
                };
                let mut counts: Vec<_> = (*first_rank..).zip(epochs.iter().copied()).collect();
                // The lower half of the name contains the operator, in the form of `call_name` in mk/call.cuh.
                if let Some((_, own)) = counts.get_mut(workspace.local_rank() as usize)
                    && name == name_again
                    && name >> 16 == operator & 0xffff
                {
                    *own = *call;
                }
                Ok(counts)
            }
        }
    }
}
