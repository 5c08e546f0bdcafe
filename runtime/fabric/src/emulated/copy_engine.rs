//! [`CopyEngine`]: the reads and writes of regions for an emulated NIC.
//!
//! [`HostCopyEngine`] serves host memory. The runtime implements the trait for GPU memory with the GPU's copy
//! engines.

use crate::transport::{MemoryKind, MemoryRange};

/// The progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// The bytes are in the target.
    Done,
    /// The copy is in progress. [`CopyEngine::poll`] reports its completion.
    Pending,
}

/// Moves the bytes of writes.
///
/// The caller has checked offsets and sizes against the regions. No call waits, because a proxy has commands to read.
/// Dropping the engine ends all access to regions before `drop` returns.
pub trait CopyEngine: Send {
    /// Checks that the engine can copy from and to this memory.
    ///
    /// # Errors
    ///
    /// Returns the reason why the engine cannot copy.
    fn check(&self, memory: &MemoryRange) -> Result<(), String>;

    /// Appends to `payload` the data that the peer's engine needs to copy `bytes` bytes of `from`: the bytes themselves, or
    /// their location. The bytes must stay unchanged until the peer's copy has completed.
    ///
    /// # Errors
    ///
    /// Returns the reason why the engine cannot read the bytes. The endpoint treats this as a failure of its NIC.
    fn stage(
        &mut self,
        from: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String>;

    /// Starts or completes the copy of a write's bytes to `to`.
    ///
    /// The payload comes from a peer and is untrusted. Copies that are in progress at one time may complete in any order.
    /// [`poll`](Self::poll) reports `token` when a pending copy has completed.
    ///
    /// # Errors
    ///
    /// Returns the reason why the copy cannot be made. The endpoint treats the peer as lost.
    fn start_copy(
        &mut self,
        to: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &[u8],
        token: u64,
    ) -> Result<CopyStatus, String>;

    /// Continues [pending](CopyStatus::Pending) copies, and appends the tokens of completed copies, whose bytes are visible as
    /// [`Event::Arrived`](crate::Event::Arrived) requires.
    ///
    /// # Errors
    ///
    /// Returns the failure. The endpoint treats this as a failure of its NIC.
    fn poll(&mut self, completed: &mut Vec<u64>) -> Result<(), String>;

    /// Makes the bytes of completed copies visible, as a read by a NIC does. Engines whose copies are visible when they are
    /// complete have nothing to do.
    ///
    /// # Errors
    ///
    /// Returns the failure. The endpoint treats this as a failure of its NIC.
    fn flush(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Copies host memory. The payload holds the bytes themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostCopyEngine;

impl CopyEngine for HostCopyEngine {
    fn check(&self, memory: &MemoryRange) -> Result<(), String> {
        match memory.kind() {
            MemoryKind::Host => Ok(()),
            other => Err(format!("{other:?} is not host memory")),
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
        // SAFETY: the range is in the region, which is mapped (`MemoryRange::new`) and disjoint from `payload`, which
        // has room.
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
                "a write of {bytes} bytes has a payload of {} bytes",
                payload.len()
            ));
        }
        let to = (to.address() + offset) as *mut u8;
        // SAFETY: the range is in the region, which is mapped (`MemoryRange::new`) and disjoint from `payload`.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len()) };
        Ok(CopyStatus::Done)
    }

    fn poll(&mut self, _: &mut Vec<u64>) -> Result<(), String> {
        Ok(())
    }
}
