//! Accesses of the running thread to global and to shared memory, and the checks of alignment, bounds and order.

use super::machine::Machine;
use super::memory::{Location, PhysicalId};
use super::stamp::{AccessKind, Accessor};
use super::state::launch::{SHARED_BITS, SHARED_START};

impl Machine {
    /// Returns the memory that the running thread's GPU accesses by `bytes` bytes at `address`. If the GPU cannot
    /// access these bytes, the kernel fails. `what` names the access in the reason.
    pub fn resolve(&mut self, address: u64, bytes: usize, what: &str) -> Option<Location> {
        let device = self.ctas[self.threads[self.current].cta].device;
        self.check_alignment(address, bytes, what)?;
        match self.memory.resolve(address, bytes as u64, Some(device)) {
            Ok(found) => Some(found),
            Err(why) => {
                self.fail(format!("{what} out of bounds: {why}"));
                None
            }
        }
    }

    /// Fails the kernel if `address` is not a multiple of the size of the access.
    fn check_alignment(&mut self, address: u64, bytes: usize, what: &str) -> Option<()> {
        if address.is_multiple_of(bytes.clamp(1, 16) as u64) || !bytes.is_power_of_two() {
            return Some(());
        }
        self.fail(format!(
            "{what} of {bytes} bytes at {address:#x}, which is not a multiple of its size"
        ));
        None
    }

    /// Checks and records an ordinary or atomic access of the running thread to global memory.
    pub fn access(
        &mut self,
        id: PhysicalId,
        offset: usize,
        bytes: usize,
        kind: AccessKind,
        write: bool,
        pc: u64,
    ) {
        let current = self.current;
        let stamp = self.stamp(current, kind, pc);
        if write {
            self.threads[current].unfenced_global = true;
        }
        let thread = &self.threads[current];
        let generic = [&thread.view.generic];
        let by = Accessor::ordinary(stamp, thread.slot, &generic);
        let cells = self.memory.physical(id).cells_of(offset, bytes);
        if let Some((fault, earlier, _)) = self.shadow.access(cells, &by, write) {
            let what = self.memory.physical(id).describe(offset);
            self.report_access_fault(fault, earlier, stamp, &what);
        }
    }

    /// Returns the CTA in whose shared memory `address` lies, as the running thread sees it.
    pub fn shared_cta(&mut self, address: u32) -> Option<usize> {
        let own = self.threads[self.current].cta;
        match address >> SHARED_BITS {
            0 => Some(own),
            rank => self.ctas[own].cluster.get(rank as usize - 1).copied(),
        }
    }

    /// Returns the offset of `address` in the shared memory of the address's CTA.
    pub fn shared_offset(&self, address: u32) -> usize {
        ((address & ((1 << SHARED_BITS) - 1)).wrapping_sub(SHARED_START)) as usize
    }

    /// Returns the CTA and the offset of `bytes` bytes at `address`. If they are out of bounds, the kernel fails.
    pub fn resolve_shared(
        &mut self,
        address: u32,
        bytes: u32,
        what: &str,
    ) -> Option<(usize, usize)> {
        let offset = self.shared_offset(address);
        let cta = self.shared_cta(address);
        let size = cta.map_or(0, |cta| self.ctas[cta].smem.bytes.len());
        if offset + bytes as usize > size {
            self.fail(format!(
                "{what} of {bytes} bytes at {address:#x} out of bounds: shared memory has {size} bytes from {SHARED_START:#x}"
            ));
            return None;
        }
        cta.map(|cta| (cta, offset))
    }

    /// Stores bytes to shared memory.
    pub fn store_shared(&mut self, address: u32, from: &[u8], pc: u64) {
        let aligned = self.check_alignment(address.into(), from.len(), "store");
        let found = aligned.and_then(|()| self.resolve_shared(address, from.len() as u32, "store"));
        let Some((cta, offset)) = found else {
            return;
        };
        self.threads[self.current].unfenced_shared = true;
        self.access_shared(cta, offset, from.len(), true, pc);
        self.ctas[cta].smem.bytes[offset..offset + from.len()].copy_from_slice(from);
    }

    /// Loads bytes from shared memory; zeros if the address is not valid.
    pub fn load_shared(&mut self, address: u32, to: &mut [u8], pc: u64) {
        let aligned = self.check_alignment(address.into(), to.len(), "load");
        let found = aligned.and_then(|()| self.resolve_shared(address, to.len() as u32, "load"));
        let Some((cta, offset)) = found else {
            return to.fill(0);
        };
        self.access_shared(cta, offset, to.len(), false, pc);
        to.copy_from_slice(&self.ctas[cta].smem.bytes[offset..offset + to.len()]);
    }

    /// Checks and records an access to shared memory.
    fn access_shared(&mut self, cta: usize, offset: usize, bytes: usize, write: bool, pc: u64) {
        self.check_running(cta, "access", pc);
        let current = self.current;
        let stamp = self.stamp(current, AccessKind::Weak, pc);
        let thread = &self.threads[current];
        let generic = [&thread.view.generic];
        let by = Accessor::ordinary(stamp, thread.slot, &generic);
        let cells = &mut self.ctas[cta].smem.cells[offset / 4..(offset + bytes).div_ceil(4)];
        if let Some((fault, earlier, _)) = self.shadow.access(cells, &by, write) {
            let at = offset as u32 + SHARED_START;
            self.report_access_fault(fault, earlier, stamp, &format!("shared memory at {at:#x}"));
        }
    }
}
