//! What mkernel's tests, benchmarks and tools share.
//!
//! - [`jobs`]: operators with known results, on simulated GPUs and on GPUs, and the search for planted mistakes.
//! - [`lab`]: random matrices, references and waits on a GPU.
//! - [`blocks`], [`edits`], [`unfused`]: timed blocks of calls, kernels with edited text, and steps of unfused baselines.
//! - [`golden`]: the golden configurations of `tests/configs`.
//! - [`readme`]: the tables of options in README.md.

pub mod blocks;
pub mod edits;
pub mod golden;
pub mod jobs;
pub mod lab;
pub mod readme;
pub mod unfused;
