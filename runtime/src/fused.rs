//! [`FusedKernel`]: a kernel that is declared as a type.

use crate::operator::Operator;
use mkernel_spec::KernelConfig;

/// A handle of an operator that is declared as a type. `#[fused_kernel(...)]` implements this trait.
pub trait FusedKernel: Sized {
    /// Returns what the kernel computes, as declared in the attribute, for ranks and nodes that the attribute does not
    /// fix. The configuration was checked at compile time as far as it was known, and
    /// [`Communicator::prepare`](crate::Communicator::prepare) checks it again.
    fn config(world: u32, nodes: u32) -> KernelConfig;

    /// Returns the prepared operator.
    fn operator(&self) -> &Operator;
}

/// Reads the configuration that `#[fused_kernel(...)]` has checked and written as JSON.
#[must_use]
pub fn declared(json: &str) -> KernelConfig {
    serde_json::from_str(json).expect("`#[fused_kernel]` writes configurations that can be read")
}
