//! What NVRTC is asked to do. Keys depend on it, also where NVRTC is not built in.

/// The version of NVRTC that kernels are tested with. Others may spill registers, or emit code that a driver of this
/// version cannot load.
pub const PINNED_VERSION: (u32, u32) = (13, 0);

/// The GPU architecture that kernels are compiled for.
pub const ARCH: &str = "sm_90a";

/// The options of the compiler. With an `sm_` architecture, ptxas runs too and checks inline PTX.
pub(crate) const OPTIONS: [&str; 4] = [
    "--gpu-architecture=sm_90a",
    "--std=c++20",
    "--ptxas-options=-v",
    "--ptxas-options=--warn-on-spills",
];
