//! [`Registers`]: how the warpgroups of a CTA share the registers of an SM.

use serde::Serialize;

/// Registers per thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Registers {
    /// Registers at entry, set by the launch bounds.
    pub entry: u32,
    /// Registers of the producer warpgroup after `setmaxnreg`.
    pub producer: u32,
    /// Registers of the consumer warpgroups after `setmaxnreg`.
    pub consumer: u32,
}

impl Registers {
    /// Whether a kernel that uses `found` registers per thread is as planned. Warpgroups that redistribute registers
    /// rely on the full number at entry.
    #[must_use]
    pub const fn fit(&self, found: u32) -> bool {
        let is_shared = self.producer != self.entry;
        found == self.entry || !is_shared && found < self.entry
    }
}
