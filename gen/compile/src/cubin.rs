//! [`Cubin`]: the machine code of a kernel.

use mkernel_spec::{Arch, Backend};
use serde::{Deserialize, Serialize};

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// The symbol of the kernel.
    pub id: String,
    /// The architecture for which the kernel was written.
    pub arch: Arch,
    /// The compiler that made the machine code.
    pub backend: Backend,
    /// An ELF image for the driver or for the simulator.
    pub bytes: Vec<u8>,
    /// The resources of an SM that the kernel uses. `None` for simulated GPUs, which have no registers.
    pub resources: Option<Resources>,
    /// The compiler's log.
    pub log: String,
}

/// The resources that a kernel uses according to ptxas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Registers per thread, at entry.
    pub registers: u32,
    /// Static shared memory.
    pub smem_static_bytes: u32,
    /// Bytes that are stored to spill registers.
    pub spill_store_bytes: u32,
    /// Bytes that are loaded to restore spilled registers.
    pub spill_load_bytes: u32,
    /// Local memory per thread.
    pub stack_bytes: u32,
}
