//! The data that a simulated machine consists of: launches, CTAs, warps, threads, and what each of them has under way.
//!
//! These modules hold data and functions on that data alone. The operations of kernels, which need the whole machine,
//! are `impl Machine` blocks in the modules beside this folder. So no module here imports from those.

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
