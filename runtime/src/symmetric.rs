//! Symmetric memory: an allocation of the same size on each rank's GPU, mapped on all GPUs of the host.

use crate::bootstrap::Collective;
use crate::driver::{DeviceMemory, Mapping, Stream};
use crate::error::Error;
use cudarc::driver::CudaContext;
use mkernel_spec::abi::MAX_RANKS;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The memory of this rank. It is mapped and zeroed, and the memory of the peers is not mapped yet.
pub(crate) struct OwnMemory {
    mapping: Arc<Mapping>,
    fd: OwnedFd,
}

/// The memory of this rank and of all ranks of its host.
///
/// An allocation lives until its last mapping on any rank is dropped, so ranks drop this type without waiting for each
/// other. Clones share the mappings.
#[derive(Clone)]
pub(crate) struct Symmetric {
    /// The addresses, by local rank.
    addresses: [u64; MAX_RANKS],
    own: Arc<Mapping>,
    _peers: Arc<[Mapping]>,
}

impl OwnMemory {
    /// Allocates at least `bytes`, and zeroes them on `stream`.
    pub fn allocate(
        ctx: &Arc<CudaContext>,
        stream: &Stream,
        bytes: u64,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::zeroed(DeviceMemory::allocate(ctx, bytes, false)?, stream, timeout)
    }

    /// Allocates memory that NICs can access. The GPU must support that.
    pub fn allocate_for_nics(
        ctx: &Arc<CudaContext>,
        stream: &Stream,
        bytes: u64,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::zeroed(DeviceMemory::allocate(ctx, bytes, true)?, stream, timeout)
    }

    fn zeroed(memory: DeviceMemory, stream: &Stream, timeout: Duration) -> Result<Self, Error> {
        let fd = memory.export()?;
        let mapping = Mapping::new(memory)?;
        // SAFETY: the range is mapped above. The mapping is kept until the stream is done; after a timeout it is
        // leaked.
        unsafe { stream.zero(mapping.address(), mapping.memory().bytes())? };
        match stream.wait(timeout) {
            Ok(()) => Ok(Self {
                mapping: Arc::new(mapping),
                fd,
            }),
            Err(error) => {
                std::mem::forget(mapping);
                Err(error)
            }
        }
    }

    /// Returns the address of the memory in this process.
    pub fn address(&self) -> u64 {
        self.mapping.address()
    }

    /// Returns the mapping. The memory stays mapped as long as the mapping lives.
    pub fn mapping(&self) -> Arc<Mapping> {
        self.mapping.clone()
    }

    /// Returns the size in bytes, which must be equal on all ranks.
    pub fn bytes(&self) -> usize {
        self.mapping.memory().bytes()
    }

    /// Maps the memory of all ranks of this host. This is a collective step, which fails on all ranks if it fails on
    /// one.
    pub fn share(
        self,
        ctx: &Arc<CudaContext>,
        ranks: &mut Collective,
        timeout: Duration,
    ) -> Result<Symmetric, Error> {
        let mut fds = ranks.exchange_fds(self.fd.as_fd(), timeout)?;
        let here = ranks.host_map().local_ranks(ranks.rank());
        let bytes = self.bytes();
        let mapped = (|| {
            let mut addresses = [0; MAX_RANKS];
            let mut peers = Vec::with_capacity(fds.len());
            for (address, rank) in addresses.iter_mut().zip(&here) {
                *address = match fds[*rank as usize].take() {
                    Some(fd) => {
                        let mapping = Mapping::new(DeviceMemory::import(ctx, fd.as_fd(), bytes)?)?;
                        let address = mapping.address();
                        peers.push(mapping);
                        address
                    }
                    None => self.mapping.address(),
                };
            }
            let memory = Symmetric {
                addresses,
                own: self.mapping,
                _peers: peers.into(),
            };
            Ok((memory, Vec::new()))
        })();
        // This step is also a barrier: after it, the memory of every rank is zeroed, so other ranks may write it.
        Ok(ranks
            .agree("mapping of the peers' memory", mapped, timeout)?
            .0)
    }
}

impl Symmetric {
    /// Returns the addresses in this process of the memory of all ranks of this host, by local rank. Unused entries are 0.
    pub fn addresses(&self) -> [u64; MAX_RANKS] {
        self.addresses
    }

    /// Returns the memory of this rank.
    pub fn own(&self) -> &Arc<Mapping> {
        &self.own
    }

    /// Returns the size on each rank.
    pub fn bytes(&self) -> u64 {
        self.own.memory().bytes() as u64
    }
}
