//! The exit code of a run.

use super::ranks::{Outcome, RankError, RankFailure};
use crate::cli::failure::exit_code;
use mkernel::{
    Error,
    error::{DeviceError, EnvironmentError, SimulatorError},
};

/// Whether the run failed because of the machine or the compiler, so that other seeds would fail too.
pub fn is_same_for_all_seeds(outcome: &Outcome) -> bool {
    code(outcome) > 1
}

/// The exit code: 1 if the kernel has a wrong result, hangs or races, 3 if it does not compile, 4 if the machine is at
/// fault.
pub fn code(outcome: &Outcome) -> u8 {
    match &outcome.result {
        Ok(_) => u8::from(!outcome.is_right()),
        Err(failed) => code_of(failed),
    }
}

/// The exit code of failed ranks.
pub fn code_of(failed: &[RankFailure]) -> u8 {
    let of = |failed: &RankFailure| match &failed.error {
        RankError::Runtime(Error::Build { source, .. }) => exit_code(source),
        RankError::Runtime(
            Error::Device(
                DeviceError::DriverMissing(_)
                | DeviceError::DriverTooOld { .. }
                | DeviceError::NoDevice { .. }
                | DeviceError::UnsupportedDevice { .. }
                | DeviceError::NoPeerAccess { .. }
                | DeviceError::NoNvLink { .. }
                | DeviceError::BackendConflict { .. },
            )
            | Error::Simulator(SimulatorError::Driver(_) | SimulatorError::NotBuilt)
            | Error::Environment(EnvironmentError::Variable { .. })
            | Error::OpenFiles { .. }
            | Error::Os { .. },
        ) => 4,
        _ => 1,
    };
    failed.iter().map(of).max().unwrap_or(1)
}
