//! [`FusedKernel`]: a kernel declared as a type.

use mkernel_spec::KernelConfig;

/// A type that stands for a kernel; `#[fused_kernel(...)]` implements it.
pub trait FusedKernel {
    /// What the kernel computes, as written in the attribute. It was checked at compile time, and is again by
    /// [`Communicator::prepare`](crate::Communicator::prepare).
    fn config() -> KernelConfig;
}
