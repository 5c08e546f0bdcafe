//! [`Compiler`]: the compiler of a target. No other file chooses between compilers.

use crate::cubin::Cubin;
use crate::error::GenError;
use crate::host_cxx::{self, HostCxx};
use crate::nvrtc::{self, Nvrtc};
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
                let (major, minor) = nvrtc::key_version();
                Self {
                    name: format!("NVRTC {major}.{minor}, {}", nvrtc::ARCH),
                    options: &nvrtc::OPTIONS,
                }
            }
            Target::Simulator => Self {
                name: host_cxx::key_name(),
                options: &host_cxx::OPTIONS,
            },
        }
    }
}

/// Compiles a kernel for its target.
pub(crate) fn compile(source: &CudaSource) -> Result<Cubin, GenError> {
    match source.target {
        Target::Sm90a => Nvrtc::load()?.compile(source),
        Target::Simulator => HostCxx::load()?.compile(source),
    }
}
