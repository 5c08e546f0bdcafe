//! The error codes of the driver, and the result of its functions.

pub(super) use cudarc::driver::sys::CUresult as Code;

/// The result of a function of the driver.
pub(super) type Result<T> = std::result::Result<T, Code>;
