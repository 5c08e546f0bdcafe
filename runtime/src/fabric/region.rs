//! [`Region`]: memory that puts read and write, and [`MemoryPath`]: how NICs access that memory.

use super::nic_settings::Flush;
use super::transport::Transport;
use crate::driver::{self, Mapping, Pinned};
use crate::error::Error;
use crate::shared::Shared;
use crate::symmetric::{OwnMemory, Symmetric};
use cudarc::driver::CudaContext;
use mkernel_fabric::{DmaBuf, MemoryKind, MemoryRange};
use std::fmt;
use std::sync::Arc;

/// The owner of a region that one kernel has for itself.
pub(crate) enum Region {
    /// Memory of all GPUs of the host, mapped on each GPU, for emulated NICs.
    Symmetric(Symmetric),
    /// Memory of this GPU.
    Device(OwnMemory),
    /// Memory of the host, which kernels access over PCIe.
    Pinned(Arc<Pinned>),
}

impl Region {
    /// Returns the address for kernels of this rank.
    pub fn address(&self) -> u64 {
        match self {
            Self::Symmetric(memory) => memory.own().address(),
            Self::Device(memory) => memory.address(),
            Self::Pinned(memory) => memory.device_address(),
        }
    }
}

/// The way in which a NIC accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryPath {
    /// The NIC is emulated by the copy engines of GPUs.
    Copies,
    /// The driver of the GPU exports the memory as a dma-buf for the driver of the NIC.
    DmaBuf,
    /// The driver of the NIC gets the addresses from the driver of the GPU through the module nvidia-peermem.
    Peermem,
    /// The memory is host memory.
    Pinned,
}

impl MemoryPath {
    /// Returns the paths that can be tried for a rank's GPU, best path first, and the reasons why better paths are not
    /// possible.
    pub fn all(
        shared: &Shared,
        transport: &Transport,
    ) -> Result<(Vec<Self>, Option<&'static str>), Error> {
        if let Transport::Emulated { .. } = transport {
            return Ok((vec![Self::Copies], None));
        }
        if shared.simulated.is_some() {
            return Ok((
                vec![Self::Pinned],
                Some("NICs cannot access simulated GPUs"),
            ));
        }
        let can = driver::nic_access(&shared.ctx)?;
        if !can.keeps_order && transport.flush() == Flush::Never {
            let reason =
                "the GPU does not keep the order of writes by NICs, and the option flush is never";
            return Ok((vec![Self::Pinned], Some(reason)));
        }
        let paths = match (can.memory, can.dma_buf) {
            (Err(reason), _) => return Ok((vec![Self::Pinned], Some(reason))),
            (Ok(()), true) => vec![Self::DmaBuf, Self::Peermem, Self::Pinned],
            (Ok(()), false) => vec![Self::Peermem, Self::Pinned],
        };
        Ok((paths, None))
    }

    /// Returns whether another path can be tried if this path is refused.
    pub fn has_alternative(self) -> bool {
        matches!(self, Self::DmaBuf | Self::Peermem)
    }

    /// Describes GPU memory for registration.
    pub fn range(self, ctx: &CudaContext, memory: &Arc<Mapping>) -> Result<MemoryRange, Error> {
        let dma_buf = match self {
            Self::DmaBuf => Some(DmaBuf {
                fd: Arc::new(memory.dma_buf()?),
                offset_bytes: 0,
            }),
            _ => None,
        };
        let kind = MemoryKind::Gpu {
            device: ctx.ordinal() as u32,
            dma_buf,
        };
        let (address, bytes) = (memory.address(), memory.memory().bytes() as u64);
        // SAFETY: the memory stays mapped as long as its owner, which the range keeps alive. Only GPUs and NICs access it.
        let range = unsafe { MemoryRange::new(address, bytes, kind) };
        Ok(range.with_owner(memory.clone()))
    }

    /// Allocates at least `bytes` of zeroed memory for this path.
    pub fn allocate(self, shared: &Shared, bytes: u64) -> Result<(Region, MemoryRange), Error> {
        if self == Self::Pinned {
            let bytes = bytes.max(1);
            let length = usize::try_from(bytes).unwrap_or(usize::MAX);
            let memory = Arc::new(Pinned::allocate(&shared.ctx, length)?);
            let address = memory.host_address(0).as_ptr() as u64;
            // SAFETY: the memory stays mapped as long as its owner, which the range keeps alive. Only kernels of this
            // rank and NICs access it.
            let range = unsafe { MemoryRange::new(address, bytes, MemoryKind::Host) };
            let range = range.with_owner(memory.clone());
            return Ok((Region::Pinned(memory), range));
        }
        let timeout = shared.gpu_timeout();
        let memory = OwnMemory::allocate_for_nics(&shared.ctx, &shared.stream, bytes, timeout)?;
        let range = self.range(&shared.ctx, &memory.mapping())?;
        Ok((Region::Device(memory), range))
    }
}

impl fmt::Display for MemoryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copies => "GPU memory through copy engines",
            Self::DmaBuf => "GPU memory through dma-buf",
            Self::Peermem => "GPU memory through nvidia-peermem",
            Self::Pinned => "pinned host memory, which kernels access over PCIe",
        })
    }
}
