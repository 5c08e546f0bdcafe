//! The native part of the Python package `mkernel`: communicators and operators that take tensors by their addresses.
//!
//! The Python sources beside this crate make `torch` operators of these operators. Nothing here knows torch.

mod communicator;
mod declaration;
mod detached;
mod error;
mod memory;
mod operator;
mod symmetric;

use pyo3::prelude::*;

/// The native part of mkernel.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::communicator::{Communicator, local, simulated};
    #[pymodule_export]
    use crate::error::Error;
    #[pymodule_export]
    use crate::operator::Operator;
    #[pymodule_export]
    use crate::symmetric::SymmetricMemory;
    use pyo3::prelude::*;
    use std::ffi::OsString;

    /// Runs the command line, and returns the exit code. The first argument is the name of the program.
    #[pyfunction]
    fn command_line(py: Python<'_>, args: Vec<OsString>) -> u8 {
        py.detach(|| mkernel_gen::run(args))
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::error::add_attributes(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
