//! What all jobs have in common: where they run, how many calls they make, and how old they can be.

use mkernel::cudarc::driver::DeviceRepr;
use mkernel::half::bf16;
use mkernel::{Communicator, Element, Error, Operator};

/// Consecutive calls of a job: two buffers are used by turns, so the third reuses the first.
pub const CALLS: u32 = 3;

/// Calls after which the epoch of the next but one has its highest bit set for the first time, or is 0 again.
pub const AGES: [u32; 2] = [(1 << 31) - 2, u32::MAX - 1];

/// Of an aged job: calls before it is pretended to be old, so that both buffers have been used, and after.
pub const CALLS_BEFORE: u32 = 2;
pub const CALLS_AFTER: u32 = 4;

/// What it runs on.
#[derive(Clone, Copy, Debug)]
pub enum Where {
    Simulated { seed: u64 },
    Gpus,
}

/// Bits of the results as fp32, by rank and call.
pub type Results = Vec<Vec<Vec<u32>>>;

/// What runs on simulated GPUs.
pub trait Simulated {
    /// Runs it with `seed`; an error, or what is wrong with the results.
    fn run(&self, seed: u64) -> Result<Results, String>;

    /// Replaces parts of the kernel's text, each of which must be found.
    fn edit(&mut self, edits: Vec<(String, String)>);
}

/// What C can be made of.
pub(super) trait Number: Element + DeviceRepr + Copy + Into<f32> {
    /// What no kernel computes.
    const POISON: Self;
}

impl Number for bf16 {
    const POISON: Self = Self::NAN;
}

impl Number for f32 {
    const POISON: Self = Self::NAN;
}

/// The deadline of kernels, which passes in simulated time. A planted mistake may end in a trap after eight deadlines.
pub fn deadline(is_right: bool) -> std::time::Duration {
    std::time::Duration::from_secs(if is_right { 20 } else { 5 })
}

/// Pretends, on each rank at the same time, that operators that have made [`CALLS_BEFORE`] calls have made `calls`.
pub fn grow_old(ranks: &Communicator, operators: &[&Operator], calls: u32) -> Result<(), Error> {
    ranks.synchronize(&ranks.context().default_stream())?;
    ranks.barrier()?;
    for operator in operators {
        // SAFETY: all ranks have waited for their calls, and make no other before all have come here again.
        unsafe { operator.pretend_calls(CALLS_BEFORE, calls)? };
    }
    ranks.barrier()
}
