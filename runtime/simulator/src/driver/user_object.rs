//! [`UserObject`]: an object of the program that graphs retain.

use super::callback::call_back;
use cudarc::driver::sys::CUhostFn;

/// An object of the program, which lives until no graph retains it and all launches of the graphs that retained it have
/// ended.
#[derive(Debug)]
pub(super) struct UserObject {
    pub data: usize,
    pub destroy: CUhostFn,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // SAFETY: the program has passed this data for this destructor, and this is the only call.
        unsafe { call_back(self.destroy, self.data) };
    }
}
