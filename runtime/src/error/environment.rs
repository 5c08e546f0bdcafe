//! [`EnvironmentError`]: the fault of the environment variables of this process.

use super::display::Variables;
use mkernel_compile::InvalidVariables;
use std::path::PathBuf;

/// The fault of the environment variables of this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// An environment variable is absent or malformed.
    #[error(
        "environment variable {name} {}; it should be {expected}",
        .value.as_ref().map_or_else(|| "is not set".to_owned(), |v| format!("is {v:?}"))
    )]
    Variable {
        /// The name of the variable.
        name: &'static str,
        /// The value of the variable, if it is set.
        value: Option<String>,
        /// A description of the values that are valid.
        expected: &'static str,
    },
    /// Variables of the compiler and the cache have values that are not valid.
    #[error(transparent)]
    Kernels(InvalidVariables),
    /// The file of measured choices cannot be used.
    #[error(
        "MKERNEL_TUNED is {}, which cannot be used: {reason}; write it by `mkernel-gen tune`, or set MKERNEL_TUNED to none", .path.display()
    )]
    Tuned {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The variables of the launcher do not determine the rank of this process.
    #[error(
        "the environment variables do not determine the rank of this process: {problem} ({}). Start it by torchrun, srun or \
         mpirun, or set RANK and WORLD_SIZE and unset the variables of other launchers",
        Variables(variables)
    )]
    Launcher {
        /// A description of the problem.
        problem: &'static str,
        /// The names of the variables that matter, each with its value if it is set.
        variables: Vec<(&'static str, Option<String>)>,
    },
}
