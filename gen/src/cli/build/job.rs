//! [`Job`]: a kernel that is built, and [`Built`]: its result.

use crate::cli::input::Kernel;
use mkernel_compile::{Cubin, KernelTemplate, Key};
use mkernel_spec::KernelPlan;
use std::path::PathBuf;

/// A kernel to build.
pub struct Job {
    pub kernel: Kernel,
    pub plan: KernelPlan,
    pub template: KernelTemplate,
    pub key: Key,
}

/// A kernel that was compiled, or found in the cache.
pub struct Built {
    pub cubin: Cubin,
    pub cached: bool,
    pub millis: f64,
    /// The files of `--dump`.
    pub dumps: Vec<PathBuf>,
}
