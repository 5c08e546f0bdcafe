//! [`SimulatedJob`]: a job on simulated GPUs.

use super::options::Simulation;
use crate::error::{Error, Finding, SimulatorError};
use mkernel_sim::world::Options;
use mkernel_sim::{HostOptions, SimulatedHost};
use mkernel_spec::Device;
use mkernel_spec::plan::Workspace;
use std::sync::{Arc, OnceLock};

pub(crate) use mkernel_sim::Watch as BusyGuard;

/// Makes cudarc use simulated GPUs.
pub(crate) fn activate() -> Result<(), Error> {
    mkernel_sim::activate()
        .map_err(|error| Error::Simulator(SimulatorError::Driver(Arc::new(error))))
}

/// Whether a kind of finding says that an access came before what it should have waited for.
fn lacks_order(kind: &str) -> bool {
    ["race", "missing fence", "uninitialised read", "deadlock"].contains(&kind)
}

/// The simulated host of a job.
pub(crate) struct SimulatedJob {
    host: SimulatedHost,
    has_timeline: bool,
    /// How many findings there were when a rank aborted.
    before_abort: OnceLock<usize>,
}

impl SimulatedJob {
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
            host: claimed
                .map_err(|error| Error::Simulator(SimulatorError::Driver(Arc::new(error))))?,
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
    pub fn pause_clock_while(&self, is_busy: impl Fn() -> bool + Send + 'static) -> BusyGuard {
        self.host.watch(is_busy)
    }

    pub fn timeline(&self) -> Option<String> {
        self.has_timeline.then(|| self.host.timeline())
    }
}
