//! The ring of commands where kernels and the proxy both reach it.

use crate::driver::Pinned;
use crate::error::Error;
use cudarc::driver::CudaContext;
use mkernel_fabric::HostRing;
use mkernel_spec::fabric::{Command, CommandRing};
use std::sync::Arc;

/// Commands that a kernel may be ahead of the proxy.
const CAPACITY_LOG2: u32 = 10;

/// Slots and words in pinned memory.
pub(crate) struct DeviceRing {
    pub ring: Arc<HostRing>,
    slots: u64,
    words: u64,
}

impl DeviceRing {
    pub fn allocate(ctx: &Arc<CudaContext>) -> Result<Self, Error> {
        let slots_bytes = size_of::<Command>() << CAPACITY_LOG2;
        // The words on a line of their own: kernels poll them.
        let memory = Pinned::allocate(ctx, slots_bytes + 128)?;
        let (slots, words) = (
            memory.device_address(),
            memory.device_address() + slots_bytes as u64,
        );
        let (host_slots, host_words) = (memory.host_address(0), memory.host_address(slots_bytes));
        // SAFETY: the memory is as long as this, zero, aligned to a page, and freed with its owner; kernels and this
        // ring alone access it.
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

    /// As kernels get it; `state` is zeroed device memory.
    pub fn on_device(&self, state: u64) -> CommandRing {
        CommandRing {
            slots: self.slots,
            words: self.words,
            state,
            capacity_log2: CAPACITY_LOG2,
        }
    }
}
