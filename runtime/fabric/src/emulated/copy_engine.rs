//! How an emulated NIC reads and writes regions.

use crate::transport::{MemoryKind, MemoryRange};

/// Where the bytes of a write are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// In the target.
    Done,
    /// On their way: [`CopyEngine::poll`] will say when they are there.
    Pending,
}

/// Moves the bytes of writes. Places have been checked against the regions. No call waits: a proxy has commands to read.
/// Dropping it ends all access to regions before `drop` returns.
pub trait CopyEngine: Send {
    /// Whether it can move bytes of this memory.
    ///
    /// # Errors
    ///
    /// Why not.
    fn check(&self, memory: &MemoryRange) -> Result<(), String>;

    /// Appends to `payload` what the peer's mover needs to place `bytes` bytes of `from`: the bytes themselves, or where
    /// they are. They stay as they are until the peer has placed them.
    ///
    /// # Errors
    ///
    /// Why not; it counts as a failure of the NIC.
    fn stage(
        &mut self,
        from: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String>;

    /// Begins to bring a write's bytes to `to`, or does it. The payload comes from a peer and is not to be trusted. Writes
    /// that are on their way together have no order among each other. `token` is what [`poll`](Self::poll) says of it.
    ///
    /// # Errors
    ///
    /// Why not; the peer counts as lost.
    fn start_copy(
        &mut self,
        to: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &[u8],
        token: u64,
    ) -> Result<CopyStatus, String>;

    /// Goes on with what is [pending](CopyStatus::Pending), and appends the tokens of what has come to be in its target:
    /// visible as [`Event::Arrived`](crate::Event::Arrived) says.
    ///
    /// # Errors
    ///
    /// What failed; it counts as a failure of the NIC.
    fn poll(&mut self, completed: &mut Vec<u64>) -> Result<(), String>;
}

/// Bytes of host memory travel in the frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostCopyEngine;

impl CopyEngine for HostCopyEngine {
    fn check(&self, memory: &MemoryRange) -> Result<(), String> {
        match memory.kind() {
            MemoryKind::Host => Ok(()),
            other => Err(format!("{other:?} is no memory of the host")),
        }
    }

    fn stage(
        &mut self,
        from: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String> {
        let start = payload.len();
        payload.reserve(bytes as usize);
        let from = (from.address() + offset) as *const u8;
        // SAFETY: the place is in the region, which is mapped (`MemoryRange::new`) and apart from `payload`, which has room.
        unsafe {
            std::ptr::copy_nonoverlapping(from, payload.as_mut_ptr().add(start), bytes as usize);
            payload.set_len(start + bytes as usize);
        }
        Ok(())
    }

    fn start_copy(
        &mut self,
        to: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &[u8],
        _: u64,
    ) -> Result<CopyStatus, String> {
        if payload.len() != bytes as usize {
            return Err(format!(
                "a write of {bytes} bytes that brings {}",
                payload.len()
            ));
        }
        let to = (to.address() + offset) as *mut u8;
        // SAFETY: the place is in the region, which is mapped (`MemoryRange::new`) and apart from `payload`.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len()) };
        Ok(CopyStatus::Done)
    }

    fn poll(&mut self, _: &mut Vec<u64>) -> Result<(), String> {
        Ok(())
    }
}
