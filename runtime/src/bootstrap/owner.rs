//! [`Owner`]: the process that created an object.

/// The process that created an object with threads or with connections to other processes. A forked child has a copy of the
/// object that shares the connections and lacks the threads. Dropping this copy must have no effect.
#[derive(Clone, Copy)]
pub(crate) struct Owner(u32);

impl Owner {
    pub fn this_process() -> Self {
        Self(std::process::id())
    }

    /// Returns whether the current process is the owner, and not a forked child of the owner.
    pub fn is_here(self) -> bool {
        std::process::id() == self.0
    }
}
