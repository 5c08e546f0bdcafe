//! [`Simulation`]: the options of a job on simulated GPUs.

use crate::error::{Error, SimulatorError};

/// The largest number of ranks of a simulated job.
pub(crate) const MAX_RANKS: usize = 8;
const MAX_SMS: u32 = 1024;
const MAX_SKEW: u32 = 100;

/// The options of a job on simulated GPUs, for [`Communicator::simulated`](crate::Communicator::simulated).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Simulation {
    /// The number of ranks, 1 to 8. Each has a GPU.
    pub ranks: u32,
    /// The seed that determines the order of concurrent events. Runs with equal seeds are equal.
    pub seed: u64,
    /// The number of streaming multiprocessors of a GPU. With a small number, small shapes take several rounds, as large shapes
    /// do on real GPUs.
    pub sms: u32,
    /// The unfairness of the scheduler to ranks, CTAs and warps, from 0 (fair) to 100.
    pub skew: u32,
    /// Whether events are recorded for [`Communicator::timeline`](crate::Communicator::timeline).
    pub timeline: bool,
}

impl Default for Simulation {
    fn default() -> Self {
        Self {
            ranks: 2,
            seed: 0,
            sms: 8,
            skew: 20,
            timeline: false,
        }
    }
}

impl Simulation {
    /// Returns the bytes of host memory that are needed for `gpu_bytes` bytes of a simulated GPU's memory.
    #[cfg(feature = "simulator")]
    #[must_use]
    pub const fn host_bytes(gpu_bytes: u64) -> u64 {
        mkernel_sim::host_bytes(gpu_bytes)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let ranges = [
            ("ranks", self.ranks, 1, MAX_RANKS as u32, "1 to 8"),
            ("sms", self.sms, 1, MAX_SMS, "1 to 1024"),
            ("skew", self.skew, 0, MAX_SKEW, "0 to 100"),
        ];
        for (field, value, least, most, expected) in ranges {
            if !(least..=most).contains(&value) {
                let value = u64::from(value);
                return Err(Error::Simulator(SimulatorError::Option {
                    field,
                    value,
                    expected,
                }));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        let usual = Simulation::default();
        assert!(usual.check().is_ok());
        let wrong = [
            Simulation {
                ranks: 9,
                ..usual.clone()
            },
            Simulation {
                sms: 0,
                ..usual.clone()
            },
            Simulation { skew: 101, ..usual },
        ];
        let messages = [
            "ranks = 9; it should be 1 to 8",
            "sms = 0; it should be 1 to 1024",
            "skew = 101",
        ];
        for (simulation, message) in wrong.iter().zip(messages) {
            let error = simulation.check().expect_err("a mistake").to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
