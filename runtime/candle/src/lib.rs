//! Layers and operators on tensors of [candle](https://docs.rs/candle-core) that run on several GPUs.
//!
//! Each operator is one fused kernel of [mkernel], which communicates while it computes, without NCCL.
//!
//! | here | operator | for |
//! |---|---|---|
//! | [`ColumnParallel`] | `ag_gemm`, `gemm`, or none | tensor parallelism, the first layer of a block |
//! | [`RowParallel`] | `gemm_ar`, `gemm_rs` | tensor parallelism, the second layer of a block |
//! | [`ring_attention`] | `ring_attention` | context parallelism |
//! | [`Experts`] | `dispatch_gemm`, `combine` | expert parallelism |
//! | [`all_reduce`], [`all_gather`], [`reduce_scatter`], [`all_to_all`], [`all_reduce_rms_norm`], [`all_reduce_rms_norm_e4m3`] | the operators of the same names | everything else |
//!
//! [`Ranks`] binds a communicator to a device of candle. This program runs on simulated GPUs with tensors of the CPU:
//!
//! ```
//! use candle_core::{DType, Device, Module, Result, Tensor};
//! use mkernel::{Communicator, Simulation};
//! use mkernel_candle::{Ranks, RowParallel};
//!
//! /// y = x · Wᵀ, where each rank has some columns of x and W. All get the sum.
//! fn forward(communicator: Communicator) -> Result<Tensor> {
//!     let ranks = Ranks::new(communicator, &Device::Cpu)?;
//!     let weight = Tensor::ones((64, 128), DType::BF16, ranks.device())?;
//!     let layer = RowParallel::shard(&ranks, &weight, None)?;
//!     let own = 128 / ranks.world();
//!     layer.forward(&Tensor::ones((2, 3, own), DType::BF16, ranks.device())?)
//! }
//!
//! let communicators = Communicator::simulated(&Simulation::default())?;
//! for y in mkernel::run(communicators, forward)? {
//!     let y = y.to_dtype(DType::F32)?;
//!     assert_eq!(y.dims(), [2, 3, 64]);
//!     assert!(y.flatten_all()?.to_vec1::<f32>()?.iter().all(|y| *y == 128.0));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The chapter `docs/book/src/candle.md` of mkernel's book says more: graphs, errors, and how to use the layers in
//! mistral.rs. `examples/candle_llama.rs` is a whole program.
//!
//! # Features
//! - `cuda`: tensors on GPUs. candle then compiles its kernels with nvcc and links with the libraries of CUDA.
//! - `simulator`: tensors on the CPU, with simulated GPUs. Simulated GPUs are not available in a program with `cuda`.
//! - `cuda-13000` (default), `jit` (default): the features of `mkernel` with these names.

mod attention;
mod call;
mod called;
mod collective;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod experts;
mod factor;
mod graph;
mod linear;
mod matmul;
mod norm;
mod operands;
mod operators;
mod ranks;
mod simulated;
mod slices;

pub use attention::{AttentionOptions, ring_attention};
pub use collective::{all_gather, all_reduce, all_to_all, reduce_scatter};
pub use error::cause;
pub use experts::{Dispatched, Experts, ExpertsSizes, grouped_matmul};
pub use factor::Factor;
pub use graph::{Graph, device_for_graphs};
pub use linear::{ColumnParallel, RowParallel};
pub use matmul::matmul;
pub use norm::{all_reduce_rms_norm, all_reduce_rms_norm_e4m3};
pub use ranks::Ranks;

pub use mkernel;
