//! [`DeviceRing`]: the ring of commands in memory that both kernels and the proxy access.

use crate::driver::Pinned;
use crate::error::Error;
use cudarc::driver::CudaContext;
use mkernel_fabric::HostRing;
use mkernel_spec::fabric::{Command, CommandRing};
use std::sync::Arc;

/// The logarithm of the number of commands that a kernel can post before the proxy has taken the first one.
const CAPACITY_LOG2: u32 = 12;

/// The slots and words of the ring, in pinned memory.
pub(crate) struct DeviceRing {
    pub ring: Arc<HostRing>,
    slots: u64,
    words: u64,
}

impl DeviceRing {
    pub fn allocate(ctx: &Arc<CudaContext>) -> Result<Self, Error> {
        let slots_bytes = size_of::<Command>() << CAPACITY_LOG2;
        // The words have a cache line to themselves, since kernels poll them.
        let memory = Pinned::allocate(ctx, slots_bytes + 128)?;
        let (slots, words) = (
            memory.device_address(),
            memory.device_address() + slots_bytes as u64,
        );
        let (host_slots, host_words) = (memory.host_address(0), memory.host_address(slots_bytes));
        // SAFETY: the memory has this length, is zeroed and aligned to a page, and is freed with its owner. Only
        // kernels and this ring access it.
        let ring = unsafe {
            HostRing::from_raw(
                host_slots.cast(),
                host_words.cast(),
                CAPACITY_LOG2,
                Box::new(memory),
            )
        };
        let ring = ring.map_err(Error::Fabric)?;
        Ok(Self { ring, slots, words })
    }

    /// Returns the ring in the form that kernels use. `state` is the address of zeroed device memory.
    pub fn on_device(&self, state: u64) -> CommandRing {
        CommandRing {
            slots: self.slots,
            words: self.words,
            state,
            capacity_log2: CAPACITY_LOG2,
        }
    }
}
