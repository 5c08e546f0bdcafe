//! Fused communication and compute kernels for several GPUs: one launch transfers data over NVLink and
//! multiplies matrices, tile by tile. Kernels are generated for your shapes, compiled by NVRTC at first use, and cached.
//!
//! ```no_run
//! use mkernel::cudarc::driver::CudaSlice;
//! use mkernel::half::bf16;
//! use mkernel::{BLayout, Communicator, Dim, Error, GemmConfig, GemmOp, GemmShape, KernelConfig};
//!
//! /// C = AllGather(A) · Bᵀ for one rank; the other ranks do the same at the same time.
//! fn forward(comm: &Communicator, a: &CudaSlice<bf16>, b: &CudaSlice<bf16>, c: &mut CudaSlice<bf16>) -> Result<(), Error> {
//!     let up = GemmConfig {
//!         n: Dim::Static(1024),
//!         k: Dim::Static(8192),
//!         b_layout: BLayout::Nk,
//!         ..GemmConfig::new(GemmOp::AgGemm)
//!     };
//!     let config = KernelConfig::new(comm.world(), up);
//!     // Plans, compiles or loads, and allocates, once per shape. All ranks must call this.
//!     let up_projection = comm.prepare(&config, GemmShape { m: 4096, n: 1024, k: 8192 })?;
//!     let stream = comm.context().default_stream();
//!     up_projection.launch(&stream, a, b, c)?;
//!     comm.synchronize(&stream)
//! }
//!
//! fn main() -> Result<(), Error> {
//!     // Either one process per GPU, as torchrun starts them,
//!     let comm = Communicator::from_env()?;
//!     // or one process with a thread per GPU.
//!     for comm in Communicator::local(&[0, 1])? {
//!         std::thread::spawn(move || println!("{comm:?}"));
//!     }
//!     # drop(comm);
//!     Ok(())
//! }
//! ```
//!
//! With `#[fused_kernel(...)]` on a unit struct (feature `macros`, on by default), the configuration is checked at compile
//! time, and each mistake is reported at its own token. The call is then `UpProjection::prepare(&comm, 4096)`.
//!
//! # Requirements
//! This crate needs NVIDIA H100 or H200 GPUs and driver 580 or newer. The GPUs of a host must be able to access each other.
//! If a kernel is neither in the cache nor in an ahead-of-time bundle, libnvrtc 13.0 is needed too. Nothing is needed at
//! build time.
//!
//! # Without a GPU
//! [`Communicator::simulated`] creates ranks on simulated GPUs. The same kernels are compiled by the host's C++ compiler
//! and run on the CPU. The scheduler is seeded, so that a run can be repeated, and finds races and deadlocks. With
//! `MKERNEL_DEVICE=sim`, [`Communicator::local`] uses simulated GPUs too. With `auto`, it does so if there is no GPU, and
//! logs a warning. This needs feature `simulator`.
//!
//! # Several hosts
//! [`Communicator::from_env`] connects ranks of several hosts. Kernels for them declare the number of `nodes`. Between the
//! nodes, the transport is InfiniBand or RoCE (feature `verbs`) or Amazon's EFA (feature `efa`); both features are off by
//! default. See [`Communicator::set_transport`]. The ranks of one host can also be divided into nodes, with emulated NICs
//! between them. [`Communicator::fabric_test`] tests the network between nodes alone.
//!
//! # When something goes wrong
//! Every wait has a deadline, 30 s by default. It is set by `MKERNEL_TIMEOUT_MS` or [`Communicator::set_timeout`]. Waits of
//! hosts for each other can have another one, set by `MKERNEL_HOST_TIMEOUT_MS` or [`Communicator::set_host_timeout`].
//!
//! When a rank dies, all others get an error that names it: [`Error::RankLost`], or the error of the network. When a rank
//! does not launch a kernel, the kernels of the others abort their waits, and [`Communicator::synchronize`] returns
//! [`Error::Timeout`] with the details of the wait. After such an error the communicator cannot be used any more, but the
//! process and its CUDA context can. Drop the communicator with its operators, and create a new one.
//!
//! # Features
//! - `macros` (default): `#[fused_kernel]`.
//! - `jit` (default): makes kernels when they are prepared. Without it, they come from a bundle or the cache.
//! - `cuda-13000` (default): cudarc's bindings of CUDA 13.0. Leave it out if another crate of the program chooses bindings
//!   of CUDA 12.8 or newer by a feature of cudarc, since cudarc can have only those of one version.
//! - `simulator`: simulated GPUs. It includes `jit`. Simulated GPUs are not available in a program in which cudarc's
//!   feature `dynamic-linking` is on, as with candle.
//! - `verbs`: InfiniBand and RoCE. Building it requires cmake, libclang and libibverbs-dev.
//! - `efa`: Amazon's EFA. It includes `verbs`.
//!
//! # Environment
//! This crate reads `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`, or the variables that other
//! launchers set instead, and also `MKERNEL_PORT`, `MKERNEL_SECRET`, `MKERNEL_HOST_ID`, `MKERNEL_TIMEOUT_MS`,
//! `MKERNEL_HOST_TIMEOUT_MS`, `MKERNEL_NICS`, `MKERNEL_PROXY_CORES`, `SYSFS_PATH`, `MKERNEL_DEVICE`, `MKERNEL_SIM_SEED`,
//! `MKERNEL_SIM_SMS` and `MKERNEL_SIM_SKEW`. The store and the compiler read the same variables as `mkernel-gen`, such as
//! `MKERNEL_CACHE_DIR`, `MKERNEL_BUNDLE` and `MKERNEL_NVRTC`.
//!
//! # Security
//! Processes connect over TCP to rank 0. They pass each other memory handles over unix sockets with random names, after
//! both ends have checked the user and the job. All data of a peer is checked before it is used. Rank 0 listens on
//! `MASTER_ADDR`, and only until all ranks are connected. With `MKERNEL_SECRET`, both ends of each connection prove by
//! HMAC-SHA256 of fresh random numbers that they know the secret. Without it, any program that reaches the port and speaks
//! the protocol can take the place of a rank. The TCP connections are neither encrypted nor signed, so an attacker who can
//! change packets in the network is not kept out.

mod age;
mod bootstrap;
mod cluster;
mod communicator;
mod copy_engine;
mod deadlines;
mod driver;
mod env;
mod error;
mod fabric;
mod fused;
mod health;
mod heap;
mod kernel;
mod launch;
mod operator;
mod order;
mod prepare;
mod reaper;
mod report;
mod shared;
mod simulation;
mod startup;
mod stats;
mod symmetric;
mod workspace;

pub use bootstrap::MAX_CONTRIBUTION_BYTES;
pub use communicator::Communicator;
pub use driver::{device_count, gpu_links};
pub use env::wanted_nics;
pub use error::{
    CallError, ClusterError, DeviceError, EnvironmentError, Error, Finding, KernelError,
    NetworkError, OperandFault, Peer, ProtocolFault, RendezvousError, RoutingFault, SimulatorError,
};
pub use fabric::fabric_test::FabricTest;
pub use fabric::fabric_test_load::{FabricTestLoad, FabricTestOptions, FabricTestResult};
pub use fabric::transport::{NicOptions, Transport};
pub use fused::FusedKernel;
pub use launch::call::{Addends, Call, Element, Readable, Writable};
pub use launch::operands::RawOperand;
pub use launch::raw_slice::RawSlice;
pub use operator::Operator;
pub use simulation::Simulation;
pub use stats::{HeapStats, Stats};

#[cfg(feature = "macros")]
pub use mkernel_macros::fused_kernel;

pub use mkernel_compile::GenError;
pub use mkernel_fabric::FabricError;
pub use mkernel_fabric::emulated::{Failure, Faults, NicModel};
pub use mkernel_spec::{
    self as spec, Activation, AttentionConfig, AttentionOp, AttentionShape, AttentionTuning,
    BLayout, CollectiveConfig, CollectiveOp, CollectiveShape, CombineConfig, CombineOp,
    CombineShape, Device, Diagnostic, Diagnostics, Dim, DispatchConfig, DispatchOp, DispatchShape,
    Dtype, Epilogue, GemmConfig, GemmOp, GemmShape, KernelConfig, KernelPlan, KernelSpec, Layout,
    Op, Placement, Problem, Protocol, Scale, Shape, Transfer, Tuning,
};

/// The crate of the streams and slices that operators take. Use this re-export, so that the versions agree.
pub use cudarc;
/// The crate of `bf16`. Use this re-export, so that the versions agree.
pub use half;
