//! Fused communication and compute kernels for several GPUs.
//!
//! One kernel launch moves data over NVLink and multiplies matrices, tile by tile. You declare an operator by one
//! attribute, and this crate plans, compiles and runs a CUDA kernel for your sizes. The kernel takes the place of a
//! collective of NCCL and a GEMM, attention or a grouped GEMM beside it.
//!
//! # A first kernel
//!
//! A linear layer under tensor parallelism, on one rank of several. All ranks do this at the same time:
//!
//! ```no_run
//! use mkernel::cudarc::driver::CudaSlice;
//! use mkernel::half::bf16;
//! use mkernel::{Communicator, Error, fused_kernel};
//!
//! /// Gathers the tokens of all ranks while it multiplies them: 8192 features in, 1024 out on each GPU.
//! #[fused_kernel(op = ag_gemm, m = dynamic, n = 1024, k = 8192, b_layout = nk)]
//! struct UpProjection;
//!
//! fn forward(ranks: &Communicator, x: &CudaSlice<bf16>, w: &CudaSlice<bf16>, y: &mut CudaSlice<bf16>) -> Result<(), Error> {
//!     // Once per size, on all ranks: plans, compiles or loads from the cache, and allocates.
//!     let up = UpProjection::prepare(ranks, 4096)?;
//!     let stream = ranks.default_stream();
//!     // Enqueues one kernel and returns at once.
//!     up.launch(&stream, UpProjectionOperands { a: x, b: w, c: y })?;
//!     // Waits for it, and returns what went wrong.
//!     ranks.synchronize(&stream)
//! }
//!
//! // One process per GPU, as torchrun, srun or mpirun starts them:
//! let ranks = Communicator::from_env()?;
//! // Or one process with a thread per GPU:
//! mkernel::run(Communicator::local(&[0, 1, 2, 3])?, |ranks| ranks.barrier())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Communicator`] is one rank of a job: its GPU, and its connections to the other ranks. [`Communicator::split`] makes groups
//!   of ranks.
//! - [`fused_kernel`] makes a struct the handle of a kernel, and declares a struct of its operands. Mistakes are compile
//!   errors.
//! - [`Communicator::prepare`] prepares a [`KernelConfig`] that is made at run time, and returns an [`Operator`].
//! - [`Op`] lists the operators: GEMMs, attention, experts, and collectives.
//!
//! The book is in the repository: `docs/book/src/guide.md` is the guide, `docs/book/src/operators.md` begins the chapters of
//! the operators, and `docs/book/src/SUMMARY.md` lists all chapters. Whole programs are in `examples`.
//!
//! # Requirements
//!
//! - NVIDIA H100 or H200 GPUs, and driver 580 or newer. The GPUs of a host must be able to access each other.
//! - Linux.
//! - libnvrtc 13.0, if a kernel is neither in the cache nor in an ahead-of-time bundle. `mkernel-gen fetch-nvrtc` installs
//!   it.
//!
//! Nothing is needed at build time. `docs/book/src/getting-started.md` lists the features of this crate.
//!
//! # Without a GPU
//!
//! [`Communicator::simulated`] creates ranks on simulated GPUs. The same kernels are compiled by the host's C++ compiler
//! and run on the CPU. The scheduler is seeded, so that a run can be repeated, and finds races and deadlocks. With
//! `MKERNEL_DEVICE=sim`, [`Communicator::local`] uses simulated GPUs too. With `auto`, it does so if there is no GPU, and
//! logs a warning. This needs the feature `simulator`. See `docs/book/src/simulator.md`.
//!
//! # Several hosts
//!
//! [`Communicator::from_env`] connects ranks of several hosts. A kernel takes each host as a node, unless its attribute
//! fixes `nodes`. Between the nodes, the transport is InfiniBand or RoCE (feature `verbs`) or Amazon's EFA (feature `efa`).
//! See [`Communicator::set_transport`]. The ranks of one host can also be divided into nodes, with emulated NICs between
//! them. [`Communicator::fabric_test`] tests the network between nodes alone. See `docs/book/src/nodes.md`, and
//! `docs/book/src/deployment.md` for Slurm, torchrun, Kubernetes and security.
//!
//! # When something goes wrong
//!
//! [`Error::kind`] says what an error is about, and `docs/book/src/errors.md` what to do about each kind.
//!
//! Every wait has a deadline, 30 s by default. It is set by `MKERNEL_TIMEOUT_MS` or [`Communicator::set_timeout`]. Waits of
//! hosts for each other can have another one, set by `MKERNEL_HOST_TIMEOUT_MS` or [`Communicator::set_host_timeout`].
//!
//! When a rank dies, all other ranks get an error that names it: [`Error::RankLost`], or the error of the network. When a rank
//! drops its communicator before making a call that other ranks have begun, these ranks get [`Error::LeftWithoutCall`]. When a
//! rank does not launch a kernel, the kernels of the other ranks abort their waits, and [`Communicator::synchronize`] returns
//! [`Error::Timeout`] with the details of the wait, and with the calls that the ranks have begun. After such an error, the
//! communicator cannot be used any more, but the process and its CUDA context can. [`Communicator::rebuild`] connects the ranks
//! that are left. Otherwise drop the communicator with its operators, and create a new one.
//!
//! # Features
//! - `macros` (default): `#[fused_kernel]`.
//! - `jit` (default): makes kernels when they are prepared. Without it, they come from a bundle or the cache.
//! - `cuda-13000` (default): cudarc's bindings of CUDA 13.0. Leave it out if another crate of the program chooses bindings
//!   of CUDA 12.8 or newer by a feature of cudarc, since cudarc can have only those of one version.
//! - `simulator`: simulated GPUs. It includes `jit`. Simulated GPUs are not available in a program in which cudarc's
//!   feature `dynamic-linking` is on, as with candle.
//! - `testing`: tools for work on the kernels themselves, which may change with any version.
//! - `verbs`: InfiniBand and RoCE. Building it requires cmake, libclang and libibverbs-dev.
//! - `efa`: Amazon's EFA. It includes `verbs`.
//!
//! # Environment and security
//!
//! `docs/book/src/environment.md` lists the environment variables. Programs need none of them, except those that a launcher
//! sets.
//!
//! Processes connect over TCP to rank 0. They pass each other memory handles over unix sockets with random names, after
//! both ends have checked the user and the job. All data of a peer is checked before it is used. Rank 0 listens on
//! `MASTER_ADDR`, and only until all ranks are connected. With `MKERNEL_SECRET`, both ends of each connection prove by
//! HMAC-SHA256 of fresh random numbers that they know the secret. Without it, any program that reaches the port and speaks
//! the protocol can take the place of a rank. The TCP connections are neither encrypted nor signed, so an attacker who can
//! change packets in the network is not kept out.

mod alloc;
mod bootstrap;
mod clock;
mod cluster;
mod communicator;
mod completion;
mod copy_engine;
mod deadlines;
mod driver;
mod env;
pub mod error;
mod fabric;
mod fused;
mod gpu;
mod graph;
mod health;
mod heap;
mod kernel;
mod launch;
mod operator;
mod operator_names;
mod order;
mod part;
mod prepare;
mod range;
mod reaper;
mod rebuild;
mod rendezvous;
mod report;
mod run;
mod shared;
mod simulation;
mod split;
mod startup;
pub mod stats;
mod symmetric;
mod symmetric_slice;
mod tensors;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trace;
mod watchdog;
mod workspace;

pub use communicator::Communicator;
pub use completion::Completion;
pub use driver::device_count;
pub use env::launcher::launcher_variables;
pub use env::tuned;
pub use error::{Error, ErrorKind};
pub use fused::FusedKernel;
#[doc(hidden)]
pub use fused::declared;
pub use launch::call::Call;
pub use operator::Operator;
pub use rendezvous::Rendezvous;
pub use run::{RunError, run};
pub use simulation::Simulation;
pub use stats::Stats;
pub use symmetric_slice::SymmetricSlice;

#[cfg(feature = "macros")]
pub use mkernel_macros::fused_kernel;

pub use mkernel_spec::abi::Operand;
pub use mkernel_spec::{KernelConfig, KernelPlan, Op, Shape, Sizes, Tuned};

/// The options of kernels, and their plans.
pub use mkernel_spec as spec;

/// The crate of the streams and slices that operators take. Use this re-export, so that the versions agree.
pub use cudarc;
/// The crate of `bf16` and `f16`. Use this re-export, so that the versions agree.
pub use float8;
pub use half;

/// The types of operands of operators.
pub mod operands {
    pub use crate::launch::call::Addends;
    pub use crate::launch::raw_operand::RawOperand;
    pub use crate::launch::raw_slice::RawSlice;
    pub use crate::launch::rows::Rows;
    pub use crate::launch::slice_types::{Element, Readable, Writable};
    pub use crate::launch::strided::Strided;
}

/// The links between GPUs, and the network between nodes.
pub mod network {
    pub use crate::driver::gpu_links;
    pub use crate::env::wanted_nics;
    pub use crate::fabric::fabric_test::FabricTest;
    pub use crate::fabric::fabric_test_load::{
        FabricTestLoad, FabricTestOptions, FabricTestResult,
    };
    pub use crate::fabric::nic_probe::{
        NicProbe, NicProbeOptions, ProbeMemory, ProbePut, WrongWords,
    };
    pub use crate::fabric::nic_settings::{Flush, NIC_SETTINGS, NicOptions, NicSetting};
    pub use crate::fabric::transport::Transport;
    pub use mkernel_fabric::emulated::{Failure, Faults, NicModel};
}
