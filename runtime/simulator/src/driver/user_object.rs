//! [`UserObject`]: an object of the program that graphs retain.

use super::result::{Code, Result};
use cudarc::driver::sys::CUhostFn;
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    /// Whether this thread runs the destructor of a user object, which must not call the driver.
    static IN_DESTRUCTOR: Cell<bool> = const { Cell::new(false) };
}

/// Fails if this thread must not call the driver now.
pub(super) fn ensure_callable() -> Result<()> {
    match IN_DESTRUCTOR.get() {
        true => Err(Code::CUDA_ERROR_NOT_PERMITTED),
        false => Ok(()),
    }
}

/// An object of the program. It lives until no graph retains it and all launches of those graphs have ended.
#[derive(Debug)]
pub(super) struct UserObject {
    pub data: usize,
    pub destroy: CUhostFn,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            IN_DESTRUCTOR.set(true);
            // SAFETY: the program has passed this data for this destructor, and this is the only call.
            unsafe { destroy(self.data as *mut c_void) };
            IN_DESTRUCTOR.set(false);
        }
    }
}
