//! Fused communication and compute kernels for several GPUs: one launch does the transfer over NVLink and the
//! matrix work, tile by tile. Kernels are rendered for your shapes, compiled by NVRTC at first use, and cached.
//!
//! ```no_run
//! use mkernel::cudarc::driver::CudaSlice;
//! use mkernel::half::bf16;
//! use mkernel::{BLayout, Communicator, Dim, Error, GemmConfig, GemmOp, GemmShape, KernelConfig};
//!
//! /// C = AllGather(A) · Bᵀ for one rank; the other ranks do the same at the same time.
//! fn forward(ranks: &Communicator, a: &CudaSlice<bf16>, b: &CudaSlice<bf16>, c: &mut CudaSlice<bf16>) -> Result<(), Error> {
//!     let up = GemmConfig {
//!         n: Dim::Static(1024),
//!         k: Dim::Static(8192),
//!         b_layout: BLayout::Nk,
//!         ..GemmConfig::new(GemmOp::AgGemm)
//!     };
//!     let config = KernelConfig::new(ranks.world(), up);
//!     // Once per shape: plans, compiles or loads, allocates. All ranks come here.
//!     let up_projection = ranks.prepare(&config, GemmShape { m: 4096, n: 1024, k: 8192 })?;
//!     let stream = ranks.context().default_stream();
//!     up_projection.launch(&stream, a, b, c)?;
//!     ranks.synchronize(&stream)
//! }
//!
//! fn main() -> Result<(), Error> {
//!     // One process per GPU, as torchrun starts them ...
//!     let ranks = Communicator::from_env()?;
//!     // ... or one process with a thread per GPU.
//!     for ranks in Communicator::local(&[0, 1])? {
//!         std::thread::spawn(move || println!("{ranks:?}"));
//!     }
//!     # drop(ranks);
//!     Ok(())
//! }
//! ```
//!
//! With `#[fused_kernel(...)]` on a unit struct (feature `macros`, on by default) the configuration is checked at
//! compile time, each mistake at its own token; then it is `UpProjection::prepare(&ranks, 4096)`.
//!
//! # What it needs
//! NVIDIA H100 or H200 GPUs, of which those of a host access each other, driver 580 or newer, and, where a kernel is not in
//! the cache or an ahead-of-time bundle, libnvrtc 13.0. Nothing is needed at build time.
//!
//! # Without a GPU
//! [`Communicator::simulated`] makes ranks on simulated GPUs: the same kernels, compiled by the host's C++ compiler, run
//! on the CPU under a scheduler that is seeded, so a run can be repeated, and that finds races and deadlocks. With
//! `MKERNEL_DEVICE=sim`, [`Communicator::local`] does too; with `auto`, it does where there is no GPU, and says so in a
//! warning. Feature `simulator`, on by default.
//!
//! # Several hosts
//! [`Communicator::from_env`] joins ranks of several hosts; kernels for them say on how many `nodes` their ranks are. Between
//! them are InfiniBand and RoCE with feature `verbs`, Amazon's EFA with feature `efa`, off by default; see
//! [`Communicator::set_transport`]. On one host, ranks are put into as many nodes, with NICs in software between them.
//! [`Communicator::fabric_test`] tests the way between nodes alone.
//!
//! # When something goes wrong
//! Every wait has a deadline: `MKERNEL_TIMEOUT_MS`, [`Communicator::set_timeout`], 30 s by default; waits of hosts for each
//! other can have another, `MKERNEL_HOST_TIMEOUT_MS`, [`Communicator::set_host_timeout`]. When a rank dies,
//! all others get an error that names it, [`Error::RankLost`] or what the network said. When one does not launch,
//! kernels on the others give up, and [`Communicator::synchronize`] returns [`Error::Timeout`]
//! with who waited for what. The communicator is out of use then, the process and its CUDA context are not: drop it
//! with its operators, and make a new one.
//!
//! # Environment
//! `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT` or what other launchers set instead, `MKERNEL_PORT`,
//! `MKERNEL_SECRET`, `MKERNEL_HOST_ID`, `MKERNEL_TIMEOUT_MS`, `MKERNEL_HOST_TIMEOUT_MS`, `MKERNEL_NICS`, `MKERNEL_PROXY_CORES`, `SYSFS_PATH`, `MKERNEL_DEVICE`, `MKERNEL_SIM_SEED`, `MKERNEL_SIM_SMS`,
//! `MKERNEL_SIM_SKEW`, and those of `mkernel-gen` for the store and the compiler, such as `MKERNEL_CACHE_DIR`, `MKERNEL_BUNDLE` and `MKERNEL_NVRTC`.
//!
//! # Safety of the way between ranks
//! Processes meet over TCP at rank 0 and hand each other their memory over unix sockets with random names, after
//! checking user and job on both ends. Nothing that a peer sends is used unchecked. Rank 0 listens at `MASTER_ADDR`, and
//! only until all have met. With `MKERNEL_SECRET`, both ends of each connection prove by HMAC-SHA256 of fresh random
//! numbers that they know it; without, whoever reaches the port and speaks the protocol can take a rank's place. TCP
//! itself is neither encrypted nor signed, so who can change packets on the way is not kept out.

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
mod symmetric;

pub use bootstrap::MAX_OFFER_BYTES;
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
pub use operator::Operator;
pub use simulation::Simulation;

#[cfg(feature = "macros")]
pub use mkernel_macros::fused_kernel;

pub use mkernel_compile::GenError;
pub use mkernel_fabric::FabricError;
pub use mkernel_fabric::emulated::{Failure, Faults, Nic};
pub use mkernel_spec::{
    self as spec, Activation, AttentionConfig, AttentionOp, AttentionShape, AttentionTuning,
    BLayout, CombineConfig, CombineOp, CombineShape, Device, Dim, DispatchConfig, DispatchOp,
    DispatchShape, Dtype, Epilogue, GemmConfig, GemmOp, GemmShape, KernelConfig, KernelPlan,
    KernelSpec, Layout, Op, Placement, Problem, Scale, Shape, Transfer, Tuning, Violation,
    Violations,
};

/// The crate whose streams and slices operators take; use this one, so that versions agree.
pub use cudarc;
/// The crate of `bf16`; use this one, so that versions agree.
pub use half;
