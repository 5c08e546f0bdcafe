//! How an emulated NIC reads and writes regions.

use crate::transport::{Memory, MemoryKind};

/// Moves the bytes of writes. Places have been checked against the regions.
pub trait Mover: Send {
    /// Whether it can move bytes of this memory.
    ///
    /// # Errors
    ///
    /// Why not.
    fn check(&self, memory: &Memory) -> Result<(), String>;

    /// Appends to `payload` what the peer's mover needs to place `bytes` bytes of `from`: the bytes themselves, or where
    /// they are. They stay as they are until the peer has placed them.
    ///
    /// # Errors
    ///
    /// Why not; it counts as a failure of the NIC.
    fn take(
        &mut self,
        from: &Memory,
        offset: u64,
        bytes: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String>;

    /// Brings a write's bytes to `to`; on return they are there. The payload comes from a peer and is not to be trusted.
    ///
    /// # Errors
    ///
    /// Why not; the peer counts as lost.
    fn place(&mut self, to: &Memory, offset: u64, bytes: u32, payload: &[u8])
    -> Result<(), String>;
}

/// Bytes of host memory travel in the frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMover;

impl Mover for HostMover {
    fn check(&self, memory: &Memory) -> Result<(), String> {
        match memory.kind() {
            MemoryKind::Host => Ok(()),
            other => Err(format!("{other:?} is no memory of the host")),
        }
    }

    fn take(
        &mut self,
        from: &Memory,
        offset: u64,
        bytes: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String> {
        let start = payload.len();
        payload.reserve(bytes as usize);
        let from = (from.address() + offset) as *const u8;
        // SAFETY: the place is in the region, which is mapped (`Memory::new`) and apart from `payload`, which has room.
        unsafe {
            std::ptr::copy_nonoverlapping(from, payload.as_mut_ptr().add(start), bytes as usize);
            payload.set_len(start + bytes as usize);
        }
        Ok(())
    }

    fn place(
        &mut self,
        to: &Memory,
        offset: u64,
        bytes: u32,
        payload: &[u8],
    ) -> Result<(), String> {
        if payload.len() != bytes as usize {
            return Err(format!(
                "a write of {bytes} bytes that brings {}",
                payload.len()
            ));
        }
        let to = (to.address() + offset) as *mut u8;
        // SAFETY: the place is in the region, which is mapped (`Memory::new`) and apart from `payload`.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len()) };
        Ok(())
    }
}
