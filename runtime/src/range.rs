//! [`Range`]: a range of a thread's time that profilers show, by NVTX. Without the feature `nvtx`, it does nothing.

use std::marker::PhantomData;

/// A range of this thread's time. It ends at drop, so ranges of a thread nest.
pub(crate) struct Range {
    /// Ranges are of threads, so a range must not leave its thread.
    _of_thread: PhantomData<*const ()>,
}

impl Range {
    /// Begins a range. `name` is called only if the feature is on.
    #[cfg_attr(
        not(feature = "nvtx"),
        expect(unused_variables, reason = "no profiler")
    )]
    pub fn begin(name: impl FnOnce() -> String) -> Self {
        #[cfg(feature = "nvtx")]
        push(&name());
        Self {
            _of_thread: PhantomData,
        }
    }

    /// Begins a range of a step.
    pub fn step(name: &str) -> Self {
        Self::begin(|| format!("mkernel {name}"))
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        #[cfg(feature = "nvtx")]
        nvtx::range_pop!();
    }
}

/// Begins a range. The first call of all threads loads the profiler's library, and other threads wait for its end: the NVTX of
/// `nvtx` 1.3 exchanges the arguments of its compare-and-swap, so that concurrent first calls initialise the library twice.
#[cfg(feature = "nvtx")]
fn push(name: &str) {
    static FIRST: std::sync::Once = std::sync::Once::new();
    // The crate does not take zero bytes.
    let name = name.replace('\0', " ");
    let mut is_first = false;
    FIRST.call_once(|| {
        is_first = true;
        nvtx::range_push!("{name}");
    });
    if !is_first {
        nvtx::range_push!("{name}");
    }
}
