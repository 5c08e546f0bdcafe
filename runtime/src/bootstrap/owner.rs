//! [`Owner`]: the process that created an object.

/// The process that created an object which has threads or connections to other processes. A forked child has a copy of the
/// object that shares the connections and lacks the threads. If the child drops its copy, nothing may happen.
#[derive(Clone, Copy)]
pub(crate) struct Owner(u32);

impl Owner {
    pub fn this_process() -> Self {
        Self(std::process::id())
    }

    /// Returns whether the current process is the owner and not a forked child of it.
    pub fn is_here(self) -> bool {
        std::process::id() == self.0
    }
}
