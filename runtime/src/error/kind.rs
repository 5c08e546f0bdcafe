//! [`ErrorKind`]: the subject of an error, which determines the remedy.

use std::fmt;

/// The subject of an [`Error`](crate::Error). Programs that react to errors match the kind, and people read the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A kernel cannot be made for this configuration, these sizes, these ranks or this GPU. Change the request.
    Configuration,
    /// A call has wrong operands, or the wrong stream. Nothing was enqueued. Change the call.
    Operands,
    /// The contents of operands are invalid, such as an expert that does not exist. Only that call is affected.
    Values,
    /// This process cannot use its GPUs, its environment variables or the simulator. Start the process in another way.
    Setup,
    /// Some ranks did not connect, or did not enter a collective step. Start all of them, or raise the timeout.
    Rendezvous,
    /// The ranks disagree. Make the same calls in the same order on every rank.
    Mismatch,
    /// A rank has ended, or a step has failed on another rank. The output of that rank has the cause.
    RankLost,
    /// A wait passed its deadline. The error names the waiting rank and the awaited event.
    Timeout,
    /// A network between nodes cannot be used, or has failed.
    Network,
    /// A kernel could not be compiled or loaded.
    Build,
    /// Two calls ran at the same time on a GPU. Order the calls.
    Overlap,
    /// The communicator failed earlier. Create a new communicator on every rank.
    Aborted,
    /// The CUDA driver or the operating system has failed.
    System,
    /// The simulator has found a mistake of a kernel.
    Simulation,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::Configuration,
        Self::Operands,
        Self::Values,
        Self::Setup,
        Self::Rendezvous,
        Self::Mismatch,
        Self::RankLost,
        Self::Timeout,
        Self::Network,
        Self::Build,
        Self::Overlap,
        Self::Aborted,
        Self::System,
        Self::Simulation,
    ];

    /// Returns the name of the kind, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Operands => "operands",
            Self::Values => "values",
            Self::Setup => "setup",
            Self::Rendezvous => "rendezvous",
            Self::Mismatch => "mismatch",
            Self::RankLost => "rank lost",
            Self::Timeout => "timeout",
            Self::Network => "network",
            Self::Build => "build",
            Self::Overlap => "overlap",
            Self::Aborted => "aborted",
            Self::System => "system",
            Self::Simulation => "simulation",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{CallError, Error};
    use std::collections::BTreeSet;

    #[test]
    fn kinds_have_names_of_their_own() {
        let names: BTreeSet<_> = ErrorKind::ALL.into_iter().map(ErrorKind::name).collect();
        assert_eq!(names.len(), ErrorKind::ALL.len());
        let error = Error::Call(CallError::StreamCaptured);
        assert_eq!(error.kind().to_string(), "operands");
    }
}
