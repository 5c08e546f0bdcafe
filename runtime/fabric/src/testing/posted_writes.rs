//! [`PostedCopyEngine`]: a [`CopyEngine`] for tests whose bytes become visible by a flush only, like writes to a GPU that does
//! not keep the order of writes by NICs.

use crate::emulated::{CopyEngine, CopyStatus, HostCopyEngine};
use crate::transport::MemoryRange;

/// Keeps the bytes of all copies until a flush.
#[derive(Default)]
pub struct PostedCopyEngine {
    posted: Vec<(MemoryRange, u64, Vec<u8>)>,
}

impl CopyEngine for PostedCopyEngine {
    fn check(&self, memory: &MemoryRange) -> Result<(), String> {
        HostCopyEngine.check(memory)
    }

    fn stage(
        &mut self,
        from: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String> {
        HostCopyEngine.stage(from, offset, bytes, payload)
    }

    fn start_copy(
        &mut self,
        to: &MemoryRange,
        offset: u64,
        _: u32,
        payload: &[u8],
        _: u64,
    ) -> Result<CopyStatus, String> {
        self.posted.push((to.clone(), offset, payload.to_vec()));
        Ok(CopyStatus::Done)
    }

    fn poll(&mut self, _: &mut Vec<u64>) -> Result<(), String> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        for (to, offset, payload) in self.posted.drain(..) {
            HostCopyEngine.start_copy(&to, offset, payload.len() as u32, &payload, 0)?;
        }
        Ok(())
    }
}
