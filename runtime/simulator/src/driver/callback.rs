//! Calls of functions of the program: host functions of streams, and destructors of user objects. Such a function must
//! not call the driver.

use super::result::{Code, Result};
use cudarc::driver::sys::CUhostFn;
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    /// Whether this thread runs a function of the program.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Fails if this thread must not call the driver now.
pub(super) fn ensure_callable() -> Result<()> {
    match IN_CALLBACK.get() {
        true => Err(Code::CUDA_ERROR_NOT_PERMITTED),
        false => Ok(()),
    }
}

/// Calls a function of the program.
///
/// # Safety
/// The program must have passed this data for this function, and allow the call now.
pub(super) unsafe fn call_back(function: CUhostFn, data: usize) {
    if let Some(function) = function {
        let outer = IN_CALLBACK.replace(true);
        // SAFETY: guaranteed by the caller.
        unsafe { function(data as *mut c_void) };
        IN_CALLBACK.set(outer);
    }
}
