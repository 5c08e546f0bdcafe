//! [`FusedKernel`]: a kernel that is declared as a type.

use mkernel_spec::KernelConfig;

/// A type that stands for a kernel. `#[fused_kernel(...)]` implements this trait.
pub trait FusedKernel {
    /// Returns what the kernel computes, as declared in the attribute. The configuration was checked at compile time,
    /// and [`Communicator::prepare`](crate::Communicator::prepare) checks it again.
    fn config() -> KernelConfig;
}
