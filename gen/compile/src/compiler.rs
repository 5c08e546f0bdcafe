//! [`Compiler`]: the compiler of a target. No other file chooses between compilers.

#[cfg(feature = "jit")]
use crate::cubin::Cubin;
#[cfg(feature = "jit")]
use crate::error::GenError;
#[cfg(feature = "jit")]
use crate::host_cxx::HostCxx;
use crate::host_cxx::{self, key_name};
#[cfg(feature = "jit")]
use crate::nvrtc::Nvrtc;
use crate::nvrtc_options::{ARCH, OPTIONS, PINNED_VERSION};
#[cfg(feature = "jit")]
use crate::source::CudaSource;
use mkernel_spec::Target;

/// The compiler of a target, described for keys and manifests by everything that determines its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiler {
    /// The name with the version and the architecture, such as `NVRTC 13.0, sm_90a`.
    pub name: String,
    /// The options that affect the result.
    pub options: &'static [&'static str],
}

impl Compiler {
    /// The compiler of `target`, which need not be installed.
    pub fn of(target: Target) -> Self {
        match target {
            Target::Sm90a => {
                let (major, minor) = key_version();
                Self {
                    name: format!("NVRTC {major}.{minor}, {}", ARCH),
                    options: &OPTIONS,
                }
            }
            Target::Simulator => Self {
                name: key_name(),
                options: &host_cxx::OPTIONS,
            },
        }
    }
}

/// The NVRTC version for keys. It is the pinned one even if libnvrtc is missing, so that bundles and caches of other
/// machines can be used.
fn key_version() -> (u32, u32) {
    #[cfg(feature = "jit")]
    if crate::env::Env::get().nvrtc_any {
        return Nvrtc::load().map_or(PINNED_VERSION, Nvrtc::version);
    }
    PINNED_VERSION
}

/// Compiles a kernel for its target.
#[cfg(feature = "jit")]
pub(crate) fn compile(source: &CudaSource) -> Result<Cubin, GenError> {
    match source.target {
        Target::Sm90a => Nvrtc::load()?.compile(source),
        Target::Simulator => HostCxx::load()?.compile(source),
    }
}
