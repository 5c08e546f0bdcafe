//! Simulated GPUs: what they are like, and what was found on them.

use crate::error::Error;
use std::fmt;

/// Ranks that a simulated job can have.
pub(crate) const MAX_RANKS: usize = 8;
const MAX_SMS: u32 = 1024;
const MAX_SKEW: u32 = 100;

/// A job on simulated GPUs, for [`Communicator::simulated`](crate::Communicator::simulated).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Simulation {
    /// Ranks, each with a GPU: 1 to 8.
    pub ranks: u32,
    /// Decides the order of all that can happen in several. Equal seeds give equal runs.
    pub seed: u64,
    /// Streaming multiprocessors of a GPU. Few make small shapes take several rounds, as large ones do on GPUs.
    pub sms: u32,
    /// How unfair the order is to ranks, CTAs and warps, 0 (fair) to 100.
    pub skew: u32,
    /// Keeps what happened, for [`Communicator::timeline`](crate::Communicator::timeline).
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
    /// Bytes of this host's memory that so many bytes of a simulated GPU's take.
    #[cfg(feature = "simulator")]
    #[must_use]
    pub const fn host_bytes(gpu_bytes: u64) -> u64 {
        mkernel_sim::host_bytes(gpu_bytes)
    }

    fn check(&self) -> Result<(), Error> {
        let ranges = [
            ("ranks", self.ranks, 1, MAX_RANKS as u32, "1 to 8"),
            ("sms", self.sms, 1, MAX_SMS, "1 to 1024"),
            ("skew", self.skew, 0, MAX_SKEW, "0 to 100"),
        ];
        for (field, value, least, most, expected) in ranges {
            if !(least..=most).contains(&value) {
                let value = u64::from(value);
                return Err(Error::SimulationOption {
                    field,
                    value,
                    expected,
                });
            }
        }
        Ok(())
    }
}

/// Something that a kernel did and must not do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// In a word, such as `race` or `deadlock`.
    pub kind: &'static str,
    /// Who, where, and beside what: several lines.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

pub(crate) use host::{Host, Watch, activate};

#[cfg(feature = "simulator")]
mod host {
    use super::{Finding, Simulation};
    use crate::error::Error;
    use mkernel_sim::world::Options;
    use mkernel_sim::{HostOptions, SimulatedHost};
    use mkernel_spec::Device;
    use mkernel_spec::plan::Workspace;
    use std::sync::{Arc, OnceLock};

    pub(crate) use mkernel_sim::Watch;

    /// Makes cudarc use simulated GPUs.
    pub(crate) fn activate() -> Result<(), Error> {
        mkernel_sim::activate().map_err(|error| Error::Simulator(Arc::new(error)))
    }

    /// Whether a kind of finding says that an access came before what it should have waited for.
    fn lacks_order(kind: &str) -> bool {
        ["race", "missing fence", "uninitialised read", "deadlock"].contains(&kind)
    }

    /// The simulated host of a job.
    pub(crate) struct Host {
        host: SimulatedHost,
        has_timeline: bool,
        /// How many findings there were when a rank aborted.
        before_abort: OnceLock<usize>,
    }

    impl Host {
        /// A host of new GPUs.
        pub fn claim(simulation: &Simulation) -> Result<Self, Error> {
            simulation.check()?;
            let device = Device::simulated(simulation.sms);
            let options = HostOptions {
                world: Options {
                    devices: simulation.ranks,
                    seed: simulation.seed,
                    skew: simulation.skew,
                    timeline: simulation.timeline,
                },
                name: device.name,
                sm_count: device.sm_count,
                smem_bytes: device.smem_bytes,
                l2_bytes: device.l2_bytes,
            };
            let claimed = SimulatedHost::claim(options);
            Ok(Self {
                host: claimed.map_err(|error| Error::Simulator(Arc::new(error)))?,
                has_timeline: simulation.timeline,
                before_abort: OnceLock::new(),
            })
        }

        /// The driver's number of its first GPU.
        pub fn first_ordinal(&self) -> usize {
            self.host.first_ordinal()
        }

        /// Whether a thread of the program waits for its GPUs.
        pub fn is_awaited(&self) -> bool {
            self.host.is_awaited()
        }

        /// Gives places of the workspace at `address` the names of its regions, for findings.
        pub fn name_workspace(&self, address: u64, workspace: Workspace) {
            self.host
                .name_memory(address, move |offset| workspace.name_of(offset));
        }

        /// What was found so far. After a rank has aborted, kernels run to their end without waiting for each other: what
        /// lacks an order then is a consequence. An access to memory that is not the kernel's is still a mistake.
        pub fn findings(&self) -> Vec<Finding> {
            let before = self.before_abort.get().copied().unwrap_or(usize::MAX);
            let findings = self.host.findings().into_iter().enumerate();
            findings
                .filter(|(i, finding)| *i < before || !lacks_order(finding.kind))
                .map(|(_, finding)| Finding {
                    kind: finding.kind,
                    text: finding.text,
                })
                .collect()
        }

        /// A rank aborts.
        pub fn abort(&self) {
            self.before_abort.get_or_init(|| self.host.findings().len());
            self.host.give_up();
        }

        /// Lets simulated time stand still while the host's part of a kernel's work is busy.
        /// `is_busy` must not call the driver; it ends with what is returned.
        pub fn watch(&self, is_busy: impl Fn() -> bool + Send + 'static) -> Watch {
            self.host.watch(is_busy)
        }

        pub fn timeline(&self) -> Option<String> {
            self.has_timeline.then(|| self.host.timeline())
        }
    }
}

/// The same without simulated GPUs: nobody ever has a host.
#[cfg(not(feature = "simulator"))]
mod host {
    use super::{Finding, Simulation};
    use crate::error::Error;
    use mkernel_spec::plan::Workspace;

    pub(crate) fn activate() -> Result<(), Error> {
        Err(Error::NoSimulator)
    }

    pub(crate) enum Host {}

    pub(crate) enum Watch {}

    impl Host {
        pub fn claim(simulation: &Simulation) -> Result<Self, Error> {
            simulation.check()?;
            Err(Error::NoSimulator)
        }

        pub fn name_workspace(&self, _: u64, _: Workspace) {
            match *self {}
        }

        pub fn first_ordinal(&self) -> usize {
            match *self {}
        }

        pub fn is_awaited(&self) -> bool {
            match *self {}
        }

        pub fn findings(&self) -> Vec<Finding> {
            match *self {}
        }

        pub fn abort(&self) {
            match *self {}
        }

        pub fn watch(&self, _: impl Fn() -> bool + Send + 'static) -> Watch {
            match *self {}
        }

        pub fn timeline(&self) -> Option<String> {
            match *self {}
        }
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

    #[test]
    fn findings_are_told_in_full() {
        let finding = |text: &str| Finding {
            kind: "race",
            text: text.into(),
        };
        let findings = vec![finding("rank 0 wrote\nrank 1 read"), finding("again")];
        let text = Error::Simulation { findings }.to_string();
        assert_eq!(
            text,
            "the simulator found 2 mistakes:\nrace: rank 0 wrote\nrank 1 read\nrace: again"
        );
    }
}
