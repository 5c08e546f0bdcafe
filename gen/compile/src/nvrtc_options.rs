//! The options for calls of NVRTC. Keys depend on these options even if NVRTC is not built in.

use mkernel_spec::Arch;

/// The version of NVRTC with which kernels are tested. Other versions may spill registers, or emit code that a driver
/// of this version cannot load.
pub const PINNED_VERSION: (u32, u32) = (13, 0);

/// The option that names the version of C++.
const STANDARD: &str = "--std=c++20";

/// The options for machine code. With an `sm_` architecture, ptxas runs too and checks inline PTX.
pub(crate) fn options(arch: Arch) -> [String; 4] {
    [
        format!("--gpu-architecture={arch}"),
        STANDARD.to_owned(),
        "--ptxas-options=-v".to_owned(),
        "--ptxas-options=--warn-on-spills".to_owned(),
    ]
}

/// The options for PTX.
#[cfg(feature = "jit")]
pub(crate) fn ptx_options(arch: Arch) -> [String; 2] {
    let name = arch.virtual_name();
    [format!("--gpu-architecture={name}"), STANDARD.to_owned()]
}
