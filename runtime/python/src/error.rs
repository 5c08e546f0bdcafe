//! [`Error`]: the exception of this package, and how errors of mkernel become exceptions.

use mkernel::ErrorKind;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pyo3::create_exception!(
    mkernel,
    Error,
    PyRuntimeError,
    "An error of mkernel.\n\n\
     Attributes:\n\
     \x20   kind: What the error is about, such as 'operands' or 'timeout'. The chapter on errors of the book lists the kinds.\n\
     \x20   rank: The rank that caused the error, or None if no rank is known.\n\
     \x20   awaited: The step or event that a rank waited for, or None if the error is not about a wait."
);

/// Gives the class the attributes of its instances, so that an exception that a program raises also has these
/// attributes.
pub fn add_attributes(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<Error>();
    for name in ["kind", "rank", "awaited"] {
        class.setattr(name, py.None())?;
    }
    Ok(())
}

/// Returns the exception for an error of mkernel.
pub fn exception(error: mkernel::Error) -> PyErr {
    let (rank, awaited) = wait(&error);
    of(error.kind(), error.to_string(), rank, awaited)
}

/// Returns an exception with a kind and a text.
pub fn of(kind: ErrorKind, text: String, rank: Option<u32>, awaited: Option<String>) -> PyErr {
    let exception = Error::new_err(text);
    Python::attach(|py| {
        let instance = exception.value(py);
        let set = instance
            .setattr("kind", kind.name())
            .and_then(|()| instance.setattr("rank", rank))
            .and_then(|()| instance.setattr("awaited", awaited));
        set.map_or_else(|failure| failure, |()| exception.clone_ref(py))
    })
}

/// Returns the rank that caused an error and the awaited event, as far as the error has them.
fn wait(error: &mkernel::Error) -> (Option<u32>, Option<String>) {
    use mkernel::Error as E;
    match error {
        E::Timeout {
            lost,
            peer,
            awaited,
            ..
        } => (Some(lost.unwrap_or(*peer)), Some((*awaited).to_owned())),
        E::RanksMissing { ranks, step, .. } => (ranks.first().copied(), Some((*step).to_owned())),
        E::RankLeft { rank, step } => (Some(*rank), Some((*step).to_owned())),
        E::LeftWithoutCall {
            rank,
            operator,
            call,
        } => (Some(*rank), Some(format!("call {call} of {operator}"))),
        E::RanksFailed { step, failures } => {
            let rank = failures.first().map(|(rank, _)| *rank);
            (rank, Some((*step).to_owned()))
        }
        E::RankLost { rank, .. } | E::Routing { rank, .. } => (Some(*rank), None),
        E::Mismatch { ranks, .. } => (ranks.first().copied(), None),
        E::Protocol { step, .. } => (None, Some((*step).to_owned())),
        E::Aborted { cause: Some(cause) } => wait(cause),
        _ => (None, None),
    }
}
