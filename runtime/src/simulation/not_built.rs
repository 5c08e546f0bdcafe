//! The names of `job.rs` for a build without the feature `simulator`. No value of these types exists.

use super::options::Simulation;
use crate::error::{Error, Finding, SimulatorError};
use mkernel_spec::KernelPlan;
use std::sync::Arc;

pub(crate) fn activate() -> Result<(), Error> {
    Err(Error::Simulator(SimulatorError::NotBuilt))
}

pub(crate) enum SimulatedJob {}

pub(crate) enum BusyGuard {}

pub(crate) enum OperatorLaunches {}

pub(crate) type OperatorKey = (Vec<u32>, u32);

impl OperatorLaunches {
    pub fn begun(&self) -> Vec<u64> {
        match *self {}
    }
}

impl SimulatedJob {
    pub fn claim(simulation: &Simulation) -> Result<Self, Error> {
        simulation.check()?;
        Err(Error::Simulator(SimulatorError::NotBuilt))
    }

    pub fn name_workspace(&self, _: u64, _: KernelPlan) {
        match *self {}
    }

    pub fn name_tensor(&self, _: u64, _: u64) {
        match *self {}
    }

    pub fn count_calls(&self, _: OperatorKey, _: (u32, &[u32]), _: u64) -> Arc<OperatorLaunches> {
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

    pub fn pause_clock_while(&self, _: impl Fn() -> bool + Send + 'static) -> BusyGuard {
        match *self {}
    }

    pub fn timeline(&self) -> Option<String> {
        match *self {}
    }
}
