//! Ordinary accesses of the running thread, to global and to shared memory, with all that is checked of them.

use super::PhysicalId;
use super::machine::{Machine, SHARED_BITS, SHARED_START};
use super::memory::Found;
use super::shadow::{Accessor, Way};

impl Machine {
    /// What `bytes` at `address` are for the running thread's GPU. If they are nothing, the kernel fails.
    pub fn find(&mut self, address: u64, bytes: usize, what: &str) -> Option<Found> {
        let device = self.ctas[self.threads[self.current].cta].device;
        self.check_alignment(address, bytes, what)?;
        match self.memory.find(address, bytes as u64, Some(device)) {
            Ok(found) => Some(found),
            Err(why) => {
                self.fail(format!("{what} out of bounds: {why}"));
                None
            }
        }
    }

    /// Fails the kernel unless `address` is a multiple of what is accessed there.
    fn check_alignment(&mut self, address: u64, bytes: usize, what: &str) -> Option<()> {
        if address.is_multiple_of(bytes.clamp(1, 16) as u64) || !bytes.is_power_of_two() {
            return Some(());
        }
        self.fail(format!(
            "{what} of {bytes} bytes at {address:#x}, which is not a multiple of its size"
        ));
        None
    }

    /// Checks and records an ordinary or atomic access of the running thread.
    pub fn access(
        &mut self,
        id: PhysicalId,
        offset: usize,
        bytes: usize,
        way: Way,
        write: bool,
        place: u64,
    ) {
        let current = self.current;
        let stamp = self.stamp(current, way, place);
        if write {
            self.threads[current].unfenced_global = true;
        }
        let thread = &self.threads[current];
        let generic = [&thread.view.generic];
        let by = Accessor::ordinary(stamp, thread.slot, &generic);
        let cells = self.memory.physical(id).cells_of(offset, bytes);
        let mut found = None;
        let note = |fault, earlier, _| {
            found.get_or_insert((fault, earlier));
        };
        if write {
            self.shadow.write(cells, &by, note);
        } else {
            self.shadow.read(cells, &by, note);
        }
        if let Some((fault, earlier)) = found {
            let what = self.memory.physical(id).describe(offset);
            self.find_fault(fault, earlier, stamp, &what);
        }
    }

    /// The CTA in whose shared memory `address` lies, as the running thread sees it.
    pub fn shared_cta(&mut self, address: u32) -> Option<usize> {
        let own = self.threads[self.current].cta;
        match address >> SHARED_BITS {
            0 => Some(own),
            rank => self.ctas[own].cluster.get(rank as usize - 1).copied(),
        }
    }

    /// Where `address` lies in its CTA's shared memory.
    pub fn shared_offset(&self, address: u32) -> usize {
        ((address & ((1 << SHARED_BITS) - 1)).wrapping_sub(SHARED_START)) as usize
    }

    /// The CTA and the offset of `bytes` at `address`; fails the kernel if they are not there.
    pub fn find_shared(&mut self, address: u32, bytes: u32, what: &str) -> Option<(usize, usize)> {
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

    pub fn store_shared(&mut self, address: u32, from: &[u8], place: u64) {
        let aligned = self.check_alignment(address.into(), from.len(), "store");
        let found = aligned.and_then(|()| self.find_shared(address, from.len() as u32, "store"));
        let Some((cta, offset)) = found else {
            return;
        };
        self.threads[self.current].unfenced_shared = true;
        self.access_shared(cta, offset, from.len(), true, place);
        self.ctas[cta].smem.bytes[offset..offset + from.len()].copy_from_slice(from);
    }

    pub fn load_shared(&mut self, address: u32, to: &mut [u8], place: u64) {
        let aligned = self.check_alignment(address.into(), to.len(), "load");
        let found = aligned.and_then(|()| self.find_shared(address, to.len() as u32, "load"));
        let Some((cta, offset)) = found else {
            return to.fill(0);
        };
        self.access_shared(cta, offset, to.len(), false, place);
        to.copy_from_slice(&self.ctas[cta].smem.bytes[offset..offset + to.len()]);
    }

    fn access_shared(&mut self, cta: usize, offset: usize, bytes: usize, write: bool, place: u64) {
        self.check_running(cta, "access", place);
        let current = self.current;
        let stamp = self.stamp(current, Way::Weak, place);
        let thread = &self.threads[current];
        let generic = [&thread.view.generic];
        let by = Accessor::ordinary(stamp, thread.slot, &generic);
        let cells = &mut self.ctas[cta].smem.cells[offset / 4..(offset + bytes).div_ceil(4)];
        let mut found = None;
        let note = |fault, earlier, _| {
            found.get_or_insert((fault, earlier));
        };
        if write {
            self.shadow.write(cells, &by, note);
        } else {
            self.shadow.read(cells, &by, note);
        }
        if let Some((fault, earlier)) = found {
            let at = offset as u32 + SHARED_START;
            self.find_fault(fault, earlier, stamp, &format!("shared memory at {at:#x}"));
        }
    }
}
