//! [`Compiler`]: what makes a target's machine code. The only place that chooses among compilers.

use crate::cubin::Cubin;
use crate::error::GenError;
use crate::host_cxx::{self, HostCxx};
use crate::nvrtc::{self, Nvrtc};
use crate::source::CudaSource;
use mkernel_spec::Target;

/// The compiler of a target, as keys and manifests know it: all of it that decides the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiler {
    /// With version and architecture, as `NVRTC 13.0, sm_90a`.
    pub name: String,
    /// Its options, less those that don't change what is made.
    pub options: &'static [&'static str],
}

impl Compiler {
    /// That of `target`, whether it is there or not.
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
