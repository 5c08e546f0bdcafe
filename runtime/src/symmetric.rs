//! Symmetric memory: the same bytes on every rank's GPU, mapped on all of them.

use crate::bootstrap::Collective;
use crate::driver::{Mapping, Memory, Stream};
use crate::error::Error;
use cudarc::driver::CudaContext;
use mkernel_spec::abi::MAX_RANKS;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// This rank's memory, mapped and zero, before the peers' is there.
pub(crate) struct OwnMemory {
    mapping: Arc<Mapping>,
    fd: OwnedFd,
}

/// This rank's memory and that of all peers.
///
/// Memory lives until its last mapping on any rank goes, so ranks drop this without waiting for each other. Clones share the
/// mappings.
#[derive(Clone)]
pub(crate) struct Symmetric {
    /// By number on the host.
    addresses: [u64; MAX_RANKS],
    _mappings: Arc<[Arc<Mapping>]>,
}

impl OwnMemory {
    /// At least `bytes`; `stream` is used to zero them.
    pub fn allocate(
        ctx: &Arc<CudaContext>,
        stream: &Stream,
        bytes: u64,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::zeroed(Memory::allocate(ctx, bytes, false)?, stream, timeout)
    }

    /// The same for NICs to reach, which must be possible.
    pub fn allocate_for_nics(
        ctx: &Arc<CudaContext>,
        stream: &Stream,
        bytes: u64,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::zeroed(Memory::allocate(ctx, bytes, true)?, stream, timeout)
    }

    fn zeroed(memory: Memory, stream: &Stream, timeout: Duration) -> Result<Self, Error> {
        let fd = memory.export()?;
        let mapping = Mapping::new(memory)?;
        // SAFETY: mapped above, and kept until the stream is done: on a time-out the mapping is leaked.
        unsafe { stream.zero(mapping.address(), mapping.memory().bytes())? };
        match wait(stream, timeout) {
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

    /// Where it is for this process.
    pub fn address(&self) -> u64 {
        self.mapping.address()
    }

    /// What keeps it mapped.
    pub fn mapping(&self) -> Arc<Mapping> {
        self.mapping.clone()
    }

    /// A dma-buf of it.
    pub fn dma_buf(&self) -> Result<OwnedFd, Error> {
        self.mapping.dma_buf()
    }

    /// Its size, which must be the same on all ranks.
    pub fn bytes(&self) -> usize {
        self.mapping.memory().bytes()
    }

    /// Maps the memory of all ranks of this host. Collective; tells the other ranks how it came out.
    pub fn share(
        self,
        ctx: &Arc<CudaContext>,
        ranks: &mut Collective,
        timeout: Duration,
    ) -> Result<Symmetric, Error> {
        let mut fds = ranks.exchange_fds(self.fd.as_fd(), timeout)?;
        let here = ranks.nodes().neighbours(ranks.rank());
        let bytes = self.bytes();
        let mapped = (|| {
            let mut addresses = [0; MAX_RANKS];
            let mut mappings = Vec::with_capacity(fds.len());
            for (address, rank) in addresses.iter_mut().zip(&here) {
                *address = match fds[*rank as usize].take() {
                    Some(fd) => {
                        let mapping = Mapping::new(Memory::import(ctx, fd.as_fd(), bytes)?)?;
                        let address = mapping.address();
                        mappings.push(Arc::new(mapping));
                        address
                    }
                    None => self.mapping.address(),
                };
            }
            mappings.push(self.mapping);
            Ok((
                Symmetric {
                    addresses,
                    _mappings: mappings.into(),
                },
                Vec::new(),
            ))
        })();
        // Also the barrier after which every rank's memory is zero and may be written by others.
        Ok(ranks
            .agree("mapping of the peers' memory", mapped, timeout)?
            .0)
    }
}

impl Symmetric {
    /// Where the memory of this host's ranks is for this process, by their number on it; 0 beyond the last.
    pub fn addresses(&self) -> [u64; MAX_RANKS] {
        self.addresses
    }
}

/// Waits until `stream` is done.
fn wait(stream: &Stream, timeout: Duration) -> Result<(), Error> {
    let started = Instant::now();
    while !stream.is_done()? {
        if started.elapsed() >= timeout {
            return Err(Error::StillBusy { waited: timeout });
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}
