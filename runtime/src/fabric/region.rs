//! [`Region`]: the memory from which and to which an endpoint's puts are made, and how NICs access it.

use crate::driver::{self, Pinned};
use crate::error::Error;
use crate::shared::Shared;
use crate::symmetric::{OwnMemory, Symmetric};
use mkernel_fabric::{DmaBuf, MemoryKind, MemoryRange};
use std::fmt;
use std::sync::Arc;

/// The owner of a rank's region 0.
pub(crate) enum Region {
    /// Memory of all GPUs of the host, mapped on each of them. Emulated NICs and the kernels of the node access it.
    Symmetric { memory: Symmetric, number: usize },
    /// Memory of this GPU.
    Device(OwnMemory),
    /// Memory of the host, which kernels access over PCIe.
    Pinned(Arc<Pinned>),
}

impl Region {
    /// Returns the address for kernels of this rank.
    pub fn address(&self) -> u64 {
        match self {
            Self::Symmetric { memory, number } => memory.addresses()[*number],
            Self::Device(memory) => memory.address(),
            Self::Pinned(memory) => memory.device_address(),
        }
    }
}

/// How a NIC accesses a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NicPath {
    /// The driver of the GPU exports the region as a dma-buf for the driver of the NIC.
    DmaBuf,
    /// The driver of the NIC gets the addresses from the driver of the GPU through the module nvidia-peermem.
    Peermem,
    /// The region is in host memory.
    Pinned,
}

impl NicPath {
    /// Returns the paths that can be tried for a rank's GPU, the best first, and why better ones are not possible.
    pub fn all(shared: &Shared) -> Result<(Vec<Self>, Option<&'static str>), Error> {
        if shared.simulated.is_some() {
            return Ok((
                vec![Self::Pinned],
                Some("NICs cannot access simulated GPUs"),
            ));
        }
        let can = driver::nic_access(&shared.ctx)?;
        let ways = match (can.memory, can.dma_buf) {
            (Err(reason), _) => return Ok((vec![Self::Pinned], Some(reason))),
            (Ok(()), true) => vec![Self::DmaBuf, Self::Peermem, Self::Pinned],
            (Ok(()), false) => vec![Self::Peermem, Self::Pinned],
        };
        Ok((ways, None))
    }

    /// Allocates at least `bytes` of zeroed memory.
    pub fn allocate(self, shared: &Shared, bytes: u64) -> Result<(Region, MemoryRange), Error> {
        if self == Self::Pinned {
            let bytes = bytes.max(1);
            let length = usize::try_from(bytes).unwrap_or(usize::MAX);
            let memory = Arc::new(Pinned::allocate(&shared.ctx, length)?);
            let address = memory.host_address(0).as_ptr() as u64;
            // SAFETY: the memory stays mapped as long as its owner, which `described` keeps alive. Only kernels of this
            // rank and NICs access it.
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
        // SAFETY: see above.
        let described = unsafe { MemoryRange::new(memory.address(), memory.bytes() as u64, kind) };
        let described = described.with_owner(memory.mapping());
        Ok((Region::Device(memory), described))
    }
}

impl fmt::Display for NicPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DmaBuf => "GPU memory through dma-buf",
            Self::Peermem => "GPU memory through nvidia-peermem",
            Self::Pinned => "pinned host memory, which kernels access over PCIe",
        })
    }
}
