//! [`SimulatedJob`]: a job on simulated GPUs.

use super::calls::CallTable;
use super::options::Simulation;
use crate::error::{Error, Finding, SimulatorError};
use mkernel_sim::world::Options;
use mkernel_sim::{HostOptions, SimulatedHost};
use mkernel_spec::{Device, KernelPlan};
use std::sync::{Arc, OnceLock};

pub(crate) use super::calls::{OperatorKey, OperatorLaunches};
pub(crate) use mkernel_sim::BusyGuard;

/// Makes cudarc use simulated GPUs.
pub(crate) fn activate() -> Result<(), Error> {
    mkernel_sim::activate()
        .map_err(|error| Error::Simulator(SimulatorError::Driver(Arc::new(error))))
}

/// Returns whether a kind of finding means that an access was not ordered after an event that the access depends on.
fn lacks_order(kind: &str) -> bool {
    ["race", "missing fence", "uninitialised read", "deadlock"].contains(&kind)
}

/// A job on simulated GPUs.
pub(crate) struct SimulatedJob {
    host: SimulatedHost,
    has_timeline: bool,
    calls: Arc<CallTable>,
    /// The number of findings when a rank aborted.
    before_abort: OnceLock<usize>,
}

impl SimulatedJob {
    /// Creates the GPUs of a new job.
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
        let host =
            claimed.map_err(|error| Error::Simulator(SimulatorError::Driver(Arc::new(error))))?;
        let calls = Arc::new(CallTable::default());
        let of_engine = calls.clone();
        host.set_launch_check(move || of_engine.lacks_call());
        Ok(Self {
            host,
            calls,
            has_timeline: simulation.timeline,
            before_abort: OnceLock::new(),
        })
    }

    /// Returns the driver's ordinal of the job's first GPU.
    pub fn first_ordinal(&self) -> usize {
        self.host.first_ordinal()
    }

    /// Returns whether a thread of the program is waiting for the job's GPUs.
    pub fn is_awaited(&self) -> bool {
        self.host.is_awaited()
    }

    /// Gives the regions of the workspace at `address` their names, for findings, and confines kernels to it.
    pub fn name_workspace(&self, address: u64, plan: KernelPlan) {
        let bytes = plan.workspace_bytes();
        self.host
            .name_memory(address, bytes, move |offset| plan.name_of(offset));
    }

    /// Gives the tensor of `bytes` bytes at `address` its name, for findings, and lets kernels access it.
    pub fn name_tensor(&self, address: u64, bytes: u64) {
        let name = |offset| Some(format!("byte {offset} of a tensor"));
        self.host.name_memory(address, bytes, name);
    }

    /// Counts the calls of a rank's operator, whose kernel is `function`. `job_ranks` are the ranks in the job of all ranks
    /// that have the operator. Returns the calls of these ranks.
    pub fn count_calls(
        &self,
        operator: OperatorKey,
        (rank, job_ranks): (u32, &[u32]),
        function: u64,
    ) -> Arc<OperatorLaunches> {
        let launches = self.host.launches_of(function).unwrap_or_default();
        self.calls.add(operator, (rank, job_ranks), launches)
    }

    /// Returns the findings so far. After a rank has aborted, kernels run to their end without waiting for each other.
    /// Findings about missing order after that are consequences and are left out. An access outside of the kernel's
    /// memory is still a mistake.
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

    /// Records that a rank aborts.
    pub fn abort(&self) {
        self.before_abort.get_or_init(|| self.host.findings().len());
        self.host.give_up();
    }

    /// Pauses simulated time while the host's part of a kernel's work is busy, until the returned guard is dropped.
    /// `is_busy` must not call the driver.
    pub fn pause_clock_while(&self, is_busy: impl Fn() -> bool + Send + 'static) -> BusyGuard {
        self.host.add_busy_check(is_busy)
    }

    pub fn timeline(&self) -> Option<String> {
        self.has_timeline.then(|| self.host.timeline())
    }
}
