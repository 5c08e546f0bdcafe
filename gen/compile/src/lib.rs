//! Renders, compiles and stores mkernel's CUDA kernels. Neither a GPU nor a driver is needed.
//!
//! ```text
//! KernelPlan ──→ KernelTemplate ─render→ CudaSource ─compile→ Cubin
//!                      └──────────────── Store ────────────────┘
//! ```
//!
//! [`build`] does all steps. Its [`Store`] compiles each kernel only once: it looks in ahead-of-time [`Bundle`]s and
//! then in the cache on disk, and if both lack the kernel it renders the text and calls `Nvrtc`, or [`HostCxx`] for
//! simulated GPUs. A bundle or cache that cannot be used counts as a miss with a warning through `tracing`. Only a kernel
//! that cannot be compiled is an error.
//!
//! ```no_run
//! use mkernel_compile::{Store, build};
//! use mkernel_spec::{BLayout, Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelPlan, SizedSpec};
//!
//! let up = GemmConfig {
//!     m: Dim::Static(8192),
//!     n: Dim::Static(1024),
//!     k: Dim::Static(8192),
//!     b_layout: BLayout::Nk,
//!     ..GemmConfig::new(GemmOp::AgGemm)
//! };
//! let spec = SizedSpec::validate(KernelConfig::new(8, up))?;
//! let plan = KernelPlan::new(&spec, &Device::h200())?;
//! let cubin = build(&plan, &Store::from_env()?)?;
//! println!("{}: {} bytes", cubin.id, cubin.bytes.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Environment variables are described in [`Env`].
//!
//! # Features
//! - `jit` (on by default): Tera and NVRTC. Without it, kernels are found in bundles and the cache only.
//! - `cuda-13000` (on by default): see the crate `mkernel`.
//!
//! Read the modules in this order: `kernel_template`, `source`, `templates`, `render`, `nvrtc_options`, `nvrtc` (with
//! `nvrtc_log`, `locate`, `library`, `program`, `cubin`), `host_cxx` (with `subprocess`), `compiler`, `key`,
//! `content_address`, `disk`, `folder`, `elf`, `entry`, `bundle`, `cache_layout`, `cache`, `store` (with `lock`,
//! `failed_source`), `build`.

mod build;
mod bundle;
mod cache;
mod cache_layout;
mod compiler;
mod content_address;
mod cubin;
mod disk;
mod elf;
mod entry;
mod env;
mod error;
mod fabric_test;
mod failed_source;
mod folder;
mod host_cxx;
mod kernel_template;
mod key;
#[cfg(feature = "jit")]
mod library;
#[cfg(feature = "jit")]
mod locate;
mod lock;
#[cfg(feature = "jit")]
mod nvrtc;
#[cfg(feature = "jit")]
mod nvrtc_log;
mod nvrtc_options;
#[cfg(feature = "jit")]
mod program;
mod render;
mod source;
mod store;
mod subprocess;
mod templates;

pub use build::build;
pub use bundle::{BUNDLE_MANIFEST, Bundle, BundledKernel};
pub use cache::{Cleaned, check_cache};
pub use cubin::{Cubin, Resources};
pub use entry::Entry;
pub use env::Env;
pub use error::{Attempt, BundleFault, GenError, InvalidVariable, InvalidVariables};
pub use host_cxx::HostCxx;
pub use kernel_template::KernelTemplate;
pub use key::{Key, ParseKeyError};
#[cfg(feature = "jit")]
pub use locate::{FETCHED, fetch_command, fetch_dir, fetched_library};
#[cfg(feature = "jit")]
pub use nvrtc::Nvrtc;
pub use nvrtc_options::PINNED_VERSION;
#[cfg(feature = "jit")]
pub use render::render;
pub use source::CudaSource;
pub use store::Store;
pub use subprocess::stop_compilers;
pub use templates::headers;
