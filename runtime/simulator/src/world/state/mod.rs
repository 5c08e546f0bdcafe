//! The data of a simulated machine: launches, CTAs, warps and threads, with their operations in flight.
//!
//! These modules hold data and functions on that data alone. The operations of kernels, which need the whole machine,
//! are `impl Machine` blocks in the modules beside this folder. No module of this folder imports from those modules.

pub(super) mod async_copies;
pub(super) mod barrier;
pub(super) mod convergence;
pub(super) mod counters;
pub(super) mod launch;
pub(super) mod mma;
pub(super) mod random;
pub(super) mod sync_words;
pub(super) mod thread;
pub(super) mod tma;
