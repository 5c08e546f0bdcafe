//! Times of calls on all ranks of a host, and the libraries of NVIDIA beside which calls are timed.
//!
//! `mkernel-gen bench` and the benchmarks of mkernel measure with this crate, which needs GPUs.
//!
//! - [`blocks`] measures the times of calls on all ranks, each on its slowest rank.
//! - [`graph`] captures calls, and replays them.
//! - [`cublas`], [`cublas_lt`] and [`nccl`] load the libraries at run time.
//! - [`Kernels`] loads kernels of a CUDA source, and [`View`] is a matrix in device memory.
//! - [`agreed`] lets all ranks fail if a rank has failed.
//! - [`TimeLimit`] ends a process that hangs.

mod agreed;
pub mod blocks;
pub mod cublas;
pub mod cublas_lt;
mod failure;
pub mod graph;
mod kernels;
mod library;
pub mod nccl;
mod random;
mod time_limit;
mod view;
mod waits;

pub use agreed::agreed;
pub use failure::Failure;
pub use kernels::Kernels;
pub use random::{Random, seed_from_clock};
pub use time_limit::TimeLimit;
pub use view::View;
