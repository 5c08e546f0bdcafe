//! How an emulated NIC moves bytes between GPUs of one host: the receiver's copy engine fetches them.

use crate::driver::{self, Stream};
use crate::error::{Error, with_causes};
use cudarc::driver::CudaContext;
use mkernel_fabric::emulated::Mover;
use mkernel_fabric::{Memory, MemoryKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rank and offset, little-endian.
const PAYLOAD_BYTES: usize = 12;

/// Copies from the regions of all ranks, which have one each, of the same size.
pub(crate) struct PeerCopies {
    pub ctx: Arc<CudaContext>,
    pub stream: Stream,
    pub rank: u32,
    /// Where this process has mapped them, by rank.
    pub regions: Vec<u64>,
    pub timeout: Duration,
}

impl PeerCopies {
    fn fetch(&self, to: u64, from: u64, bytes: u32) -> Result<(), Error> {
        driver::bind(&self.ctx)?;
        // SAFETY: both places are in regions, which are mapped until the proxy has ended.
        unsafe { self.stream.copy(to, from, bytes as usize)? };
        let started = Instant::now();
        while !self.stream.is_done()? {
            if started.elapsed() >= self.timeout {
                return Err(Error::StillBusy {
                    waited: self.timeout,
                });
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl Mover for PeerCopies {
    fn check(&self, memory: &Memory) -> Result<(), String> {
        match memory.kind() {
            MemoryKind::Gpu { .. } if memory.address() == self.regions[self.rank as usize] => {
                Ok(())
            }
            _ => Err("only the memory that all ranks have mapped can be a region".to_owned()),
        }
    }

    fn take(
        &mut self,
        _: &Memory,
        offset: u64,
        _: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String> {
        payload.extend(self.rank.to_le_bytes());
        payload.extend(offset.to_le_bytes());
        Ok(())
    }

    fn place(
        &mut self,
        to: &Memory,
        offset: u64,
        bytes: u32,
        payload: &[u8],
    ) -> Result<(), String> {
        let malformed = || format!("a write that says {payload:02x?} of its source");
        let payload: &[u8; PAYLOAD_BYTES] = payload.try_into().map_err(|_| malformed())?;
        let (rank, from) = payload.split_at(4);
        let rank = u32::from_le_bytes(rank.try_into().unwrap_or_default());
        let from = u64::from_le_bytes(from.try_into().unwrap_or_default());
        let region = self.regions.get(rank as usize);
        let ends = from.checked_add(bytes.into());
        let (Some(region), Some(true)) = (region, ends.map(|end| end <= to.bytes())) else {
            return Err(malformed());
        };
        self.fetch(to.address() + offset, region + from, bytes)
            .map_err(|error| with_causes(&error))
    }
}
