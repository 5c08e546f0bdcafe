//! [`Owner`]: the process that made something.

/// The process that made something whose end others see, or that has threads. A forked child has a copy of it, with the
/// same connections and without the threads: where it drops that, nothing must happen.
#[derive(Clone, Copy)]
pub(crate) struct Owner(u32);

impl Owner {
    pub fn this_process() -> Self {
        Self(std::process::id())
    }

    /// Whether this is the process, and no child of it.
    pub fn is_here(self) -> bool {
        std::process::id() == self.0
    }
}
