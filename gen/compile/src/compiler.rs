//! [`Compiler`]: the compiler of a backend. No other file chooses between compilers.

#[cfg(feature = "jit")]
use crate::cubin::Cubin;
#[cfg(feature = "jit")]
use crate::error::GenError;
#[cfg(feature = "jit")]
use crate::host_cxx::HostCxx;
use crate::host_cxx::{self, key_name};
#[cfg(feature = "jit")]
use crate::nvrtc::Nvrtc;
use crate::nvrtc_options::{PINNED_VERSION, options};
#[cfg(feature = "jit")]
use crate::source::CudaSource;
use mkernel_spec::{Arch, Backend};

/// The compiler of a backend, described for keys and manifests by everything that determines its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiler {
    /// The name with the version and the architecture, such as `NVRTC 13.0, sm_90a`.
    pub name: String,
    /// The options that affect the result.
    pub options: Vec<String>,
}

impl Compiler {
    /// The compiler of `backend` for kernels of `arch`. It need not be installed.
    pub fn of(arch: Arch, backend: Backend) -> Self {
        match backend {
            Backend::Nvrtc => {
                let (major, minor) = key_version();
                Self {
                    name: format!("NVRTC {major}.{minor}, {arch}"),
                    options: options(arch).to_vec(),
                }
            }
            Backend::HostCxx => Self {
                name: key_name(),
                options: host_cxx::OPTIONS.map(str::to_owned).to_vec(),
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

/// Compiles a kernel with the compiler of its backend.
#[cfg(feature = "jit")]
pub(crate) fn compile(source: &CudaSource) -> Result<Cubin, GenError> {
    match source.backend {
        Backend::Nvrtc => Nvrtc::load()?.compile(source),
        Backend::HostCxx => HostCxx::load()?.compile(source),
    }
}
