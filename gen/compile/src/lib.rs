//! From a plan to machine code: renders, compiles and stores mkernel's CUDA kernels. Needs no GPU and no driver.
//!
//! ```text
//! KernelPlan ─render→ CudaSource ─compile→ Cubin
//!                └────────── Store ─────────┘
//! ```
//!
//! [`build`] is the whole way; the [`Store`] in it makes sure that each kernel is compiled once: it looks in
//! ahead-of-time [`Bundle`]s, then in the cache on disk, then calls [`Nvrtc`], or, for simulated GPUs, [`HostCxx`]. Trouble with bundles or the cache is a
//! warning (through `tracing`) and a miss, never an error; only a kernel that cannot be compiled is one.
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
//! Reading order: `source`, `render`, `nvrtc` (with `locate`, `library`, `program`, `cubin`), `host_cxx` (with
//! `subprocess`), `compiler`, `key`, `folder`, `elf`, `entry`, `bundle`, `parts`, `cache`,
//! `store` (with `lock`, `failed`), `build`.

mod build;
mod bundle;
mod cache;
mod compiler;
mod content_address;
mod cubin;
mod disk;
mod elf;
mod entry;
mod env;
mod error;
mod failed;
mod folder;
mod host_cxx;
mod key;
mod library;
mod locate;
mod lock;
mod nvrtc;
mod parts;
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
pub use error::{BundleFault, GenError, Place};
pub use host_cxx::HostCxx;
pub use key::{Key, ParseKeyError};
pub use locate::{FETCHED, PINNED_VERSION, fetch_command, fetch_dir, fetched_library};
pub use nvrtc::{ARCH, Nvrtc};
pub use render::{render, render_fabric_test};
pub use source::CudaSource;
pub use store::Store;
pub use templates::headers;
