//! [`Region`]: the memory that an endpoint's puts come from and go to, and how NICs reach it.

use crate::driver::{self, Pinned};
use crate::error::Error;
use crate::shared::Shared;
use crate::symmetric::{OwnMemory, Symmetric};
use mkernel_fabric::{DmaBuf, MemoryKind, MemoryRange};
use std::fmt;
use std::sync::Arc;

/// What keeps a rank's region 0.
pub(crate) enum Region {
    /// On all GPUs of the host, and mapped on each: for emulated NICs, and for kernels of the node.
    Symmetric { memory: Symmetric, number: usize },
    /// On this GPU.
    Device(OwnMemory),
    /// On the host; kernels reach it over PCIe.
    Pinned(Arc<Pinned>),
}

impl Region {
    /// Where kernels of this rank find it.
    pub fn address(&self) -> u64 {
        match self {
            Self::Symmetric { memory, number } => memory.addresses()[*number],
            Self::Device(memory) => memory.address(),
            Self::Pinned(memory) => memory.device_address(),
        }
    }
}

/// How a NIC reaches a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The GPU's driver gives the NIC's a dma-buf of it.
    DmaBuf,
    /// The NIC's driver asks the GPU's, by the module nvidia-peermem.
    Peermem,
    /// It is not on the GPU at all.
    Pinned,
}

impl Way {
    /// What can be tried for a rank's GPU, the best first, and why better ones cannot.
    pub fn all(shared: &Shared) -> Result<(Vec<Self>, Option<&'static str>), Error> {
        if shared.simulated.is_some() {
            return Ok((vec![Self::Pinned], Some("no NIC reaches a simulated GPU")));
        }
        let can = driver::nic_access(&shared.ctx)?;
        let ways = match (can.memory, can.dma_buf) {
            (Err(reason), _) => return Ok((vec![Self::Pinned], Some(reason))),
            (Ok(()), true) => vec![Self::DmaBuf, Self::Peermem, Self::Pinned],
            (Ok(()), false) => vec![Self::Peermem, Self::Pinned],
        };
        Ok((ways, None))
    }

    /// Memory of at least `bytes`, zero.
    pub fn allocate(self, shared: &Shared, bytes: u64) -> Result<(Region, MemoryRange), Error> {
        if self == Self::Pinned {
            let bytes = bytes.max(1);
            let length = usize::try_from(bytes).unwrap_or(usize::MAX);
            let memory = Arc::new(Pinned::allocate(&shared.ctx, length)?);
            let address = memory.host_address(0).as_ptr() as u64;
            // SAFETY: mapped as long as its owner, which it keeps; only kernels of this rank and NICs access it.
            let described = unsafe { MemoryRange::new(address, bytes, MemoryKind::Host) };
            let described = described.with_owner(memory.clone());
            return Ok((Region::Pinned(memory), described));
        }
        let timeout = shared.gpu_timeout();
        let memory = OwnMemory::allocate_for_nics(&shared.ctx, &shared.stream, bytes, timeout)?;
        let dma_buf = match self {
            Self::DmaBuf => Some(DmaBuf {
                fd: Arc::new(memory.dma_buf()?),
                offset_bytes: 0,
            }),
            _ => None,
        };
        let kind = MemoryKind::Gpu {
            device: shared.ctx.ordinal() as u32,
            dma_buf,
        };
        // SAFETY: as above.
        let described = unsafe { MemoryRange::new(memory.address(), memory.bytes() as u64, kind) };
        let described = described.with_owner(memory.mapping());
        Ok((Region::Device(memory), described))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DmaBuf => "GPU memory, by dma-buf",
            Self::Peermem => "GPU memory, by nvidia-peermem",
            Self::Pinned => "pinned host memory, which kernels reach over PCIe",
        })
    }
}
