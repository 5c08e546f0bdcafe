//! Renders, compiles and stores mkernel's CUDA kernels. Neither a GPU nor a driver is needed.
//!
//! ```text
//! KernelPlan ─render→ CudaSource ─compile→ Cubin
//!                └────────── Store ─────────┘
//! ```
//!
//! [`build`] does both steps. Its [`Store`] compiles each kernel only once: it looks in ahead-of-time [`Bundle`]s and
//! then in the cache on disk, and if both lack the kernel it calls [`Nvrtc`], or [`HostCxx`] for simulated GPUs. A
//! bundle or cache that cannot be used counts as a miss with a warning through `tracing`. Only a kernel that cannot be
//! compiled is an error.
//!
//! ```no_run
//! use mkernel_compile::{Store, build};
//! use mkernel_spec::{BLayout, Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelPlan, KernelSpec};
//!
//! let up = GemmConfig {
//!     m: Dim::Static(8192),
//!     n: Dim::Static(1024),
//!     k: Dim::Static(8192),
//!     b_layout: BLayout::Nk,
//!     ..GemmConfig::new(GemmOp::AgGemm)
//! };
//! let spec = KernelSpec::validate(KernelConfig::new(8, up))?;
//! let plan = KernelPlan::new(&spec, &Device::h200())?;
//! let cubin = build(&plan, &Store::from_env())?;
//! println!("{}: {} bytes", cubin.id, cubin.bytes.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Environment variables are described in [`Env`].
//!
//! Read the modules in this order: `source`, `render`, `nvrtc` (with `locate`, `library`, `program`, `cubin`),
//! `host_cxx` (with `subprocess`), `compiler`, `key`, `content_address`, `folder`, `elf`, `entry`, `bundle`,
//! `cache_layout`, `cache`, `store` (with `lock`, `failed_source`), `build`.

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
mod failed_source;
mod folder;
mod host_cxx;
mod key;
mod library;
mod locate;
mod lock;
mod nvrtc;
mod program;
mod render;
mod source;
mod store;
mod subprocess;
mod templates;

pub use build::build;
pub use bundle::{BUNDLE_MANIFEST, Bundle};
pub use cache::Cleaned;
pub use cubin::{Cubin, Resources};
pub use entry::Entry;
pub use env::Env;
pub use error::{Attempt, BundleFault, GenError};
pub use host_cxx::HostCxx;
pub use key::{Key, ParseKeyError};
pub use locate::{FETCHED, PINNED_VERSION, fetch_command, fetch_dir, fetched_library};
pub use nvrtc::{ARCH, Nvrtc};
pub use render::{render, render_fabric_test};
pub use source::CudaSource;
pub use store::Store;
pub use templates::headers;
