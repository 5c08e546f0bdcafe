//! The library that the tests, the benchmarks and the tools of mkernel share.
//!
//! - [`jobs`] runs operators with known results on simulated GPUs and on real ones, and mutates their kernels.
//! - [`lab`] fills matrices with random numbers on a GPU, and compares results with a reference.
//! - [`block_on`](mod@block_on) waits for a future.
//! - [`documents`] reads README.md and the book, and prints their tables of options.
//! - [`edits`] prepares operators whose kernel text is edited.
//! - [`golden`] reads the golden configurations in `tests/configs`.
//! - [`kinds`] has an operator of each kind.
//! - [`mutants`] plants mistakes in kernels.
//! - [`options`] parses options that several benchmarks have.
//! - [`ranks`] runs benchmarks on the GPUs of this host.
//! - [`blocks`], [`graph`], [`cublas`] and [`cublas_lt`] are of `mkernel-measure`, with which `mkernel-gen bench` measures too.
//! - [`unfused`] measures the network transfers of an unfused baseline.

pub mod block_on;
#[cfg(doctest)]
mod book;
pub mod documents;
pub mod edits;
pub mod golden;
pub mod jobs;
pub mod kinds;
pub mod lab;
pub mod mutants;
pub mod options;
pub mod ranks;
pub mod survival;
pub mod unfused;

pub use mkernel_measure::{blocks, cublas, cublas_lt, graph};
