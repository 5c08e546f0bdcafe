//! Global memory: what is allocated, and where it is mapped.

use super::PhysicalId;
use super::shadow::{Cell, WORD_BYTES};
use std::collections::BTreeMap;

/// Where addresses of simulated memory begin. They are not canonical, so no memory of this process can be there: a
/// kernel that accesses memory without a primitive faults at once.
const FIRST_ADDRESS: u64 = 1 << 60;

/// Between two reservations, so that running out of one does not reach the next.
const GAP_BYTES: u64 = 1 << 21;

/// Memory of a GPU.
pub(super) struct Physical {
    pub bytes: Vec<u8>,
    pub cells: Vec<Cell>,
    pub device: u32,
    names: Option<Names>,
    mappings: u32,
    released: bool,
}

/// What places in an allocation are called, by their offsets.
pub(super) type Names = Box<dyn Fn(u64) -> Option<String> + Send>;

impl std::fmt::Debug for Physical {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes on GPU {}", self.bytes.len(), self.device)
    }
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    to: Target,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Physical {
        id: PhysicalId,
        device: u32,
    },
    /// Memory of this process at its own address.
    Host,
}

/// What an address leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Global { id: PhysicalId, offset: usize },
    Host { address: u64 },
}

/// All memory of a host's GPUs.
#[derive(Debug)]
pub(super) struct Memory {
    next_address: u64,
    /// By number; none where it was freed.
    physical: Vec<Option<Physical>>,
    mappings: BTreeMap<u64, Mapping>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            next_address: FIRST_ADDRESS,
            // Handles of 0 are none.
            physical: vec![None],
            mappings: BTreeMap::new(),
        }
    }
}

impl Memory {
    /// None if this host has not enough memory.
    pub fn create(&mut self, device: u32, bytes: u64) -> Option<PhysicalId> {
        let id = PhysicalId(self.physical.len() as u64);
        let size = usize::try_from(bytes).ok()?;
        let physical = Physical {
            // The content is undefined on a GPU. This reads as a NaN in bf16 and in fp32.
            bytes: filled(size, 0xff)?,
            cells: filled(size.div_ceil(WORD_BYTES), Cell::default())?,
            device,
            names: None,
            mappings: 0,
            released: false,
        };
        self.physical.push(Some(physical));
        Some(id)
    }

    pub fn release(&mut self, id: PhysicalId) {
        if let Some(physical) = self.physical_mut(id) {
            physical.released = true;
        }
        self.drop_unused(id);
    }

    pub fn reserve(&mut self, bytes: u64) -> u64 {
        let address = self.next_address;
        self.next_address = (address + bytes + GAP_BYTES).next_multiple_of(GAP_BYTES);
        address
    }

    pub fn map(&mut self, address: u64, id: PhysicalId, device: u32) {
        if let Some(physical) = self.physical_mut(id) {
            physical.mappings += 1;
            let bytes = physical.bytes.len() as u64;
            self.mappings.insert(
                address,
                Mapping {
                    bytes,
                    to: Target::Physical { id, device },
                },
            );
        }
    }

    pub fn map_host(&mut self, address: u64, bytes: u64) {
        self.mappings.insert(
            address,
            Mapping {
                bytes,
                to: Target::Host,
            },
        );
    }

    pub fn unmap(&mut self, address: u64) {
        let Some(Mapping {
            to: Target::Physical { id, .. },
            ..
        }) = self.mappings.remove(&address)
        else {
            return;
        };
        if let Some(physical) = self.physical_mut(id) {
            physical.mappings -= 1;
        }
        self.drop_unused(id);
    }

    fn drop_unused(&mut self, id: PhysicalId) {
        if let Some(physical) = self.physical.get_mut(id.0 as usize) {
            physical.take_if(|physical| physical.released && physical.mappings == 0);
        }
    }

    /// What `bytes` at `address` are for `device` (copies access all: `None`), or why they are nothing.
    pub fn find(&self, address: u64, bytes: u64, device: Option<u32>) -> Result<Found, String> {
        let (start, mapping) = self
            .mappings
            .range(..=address)
            .next_back()
            .ok_or_else(|| format!("address {address:#x} is below all memory of the GPUs"))?;
        let offset = address - start;
        if offset.saturating_add(bytes) > mapping.bytes {
            return Err(format!(
                "{bytes} bytes at {address:#x} lie outside of every allocation; the nearest below has {} bytes from {start:#x}",
                mapping.bytes
            ));
        }
        match mapping.to {
            Target::Physical { device: owner, .. }
                if device.is_some_and(|device| device != owner) =>
            {
                Err(format!(
                    "the memory at {address:#x} is mapped for GPU {owner}, not for this one"
                ))
            }
            Target::Physical { id, .. } => Ok(Found::Global {
                id,
                offset: offset as usize,
            }),
            Target::Host => Ok(Found::Host { address }),
        }
    }

    /// Gives places of the allocation at `address` names, for findings.
    pub fn name(&mut self, address: u64, names: Names) {
        if let Ok(Found::Global { id, offset: 0 }) = self.find(address, 1, None) {
            self.physical(id).names = Some(names);
        }
    }

    /// Memory that [`Self::find`] found.
    ///
    /// # Panics
    /// If it was freed since.
    pub fn physical(&mut self, id: PhysicalId) -> &mut Physical {
        self.physical_mut(id).expect("found before")
    }

    fn physical_mut(&mut self, id: PhysicalId) -> Option<&mut Physical> {
        self.physical.get_mut(id.0 as usize)?.as_mut()
    }
}

impl Physical {
    /// A byte of it, for people.
    pub fn describe(&self, offset: usize) -> String {
        let name = self.names.as_ref().and_then(|names| names(offset as u64));
        let name = name.unwrap_or_else(|| format!("byte {offset} of an allocation"));
        format!("{name} on GPU {}", self.device)
    }

    /// The cells of `bytes` from `offset`.
    pub fn cells_of(&mut self, offset: usize, bytes: usize) -> &mut [Cell] {
        &mut self.cells[offset / WORD_BYTES..(offset + bytes).div_ceil(WORD_BYTES)]
    }
}

/// So many elements, if there is memory for them.
fn filled<T: Clone>(count: usize, value: T) -> Option<Vec<T>> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(count).ok()?;
    elements.resize(count, value);
    Some(elements)
}

/// Bytes of this host that so many bytes of simulated memory take.
#[must_use]
pub const fn host_bytes(bytes: u64) -> u64 {
    bytes.saturating_mul((WORD_BYTES + size_of::<Cell>()) as u64) / WORD_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_memory_lead_to_the_same_bytes() {
        let mut memory = Memory::default();
        let id = memory.create(0, 4096).expect("memory");
        let (first, second) = (memory.reserve(4096), memory.reserve(4096));
        memory.map(first, id, 0);
        memory.map(second, id, 1);
        let at = |address, device| memory.find(address, 8, Some(device)).expect("mapped");
        assert_eq!(at(first + 16, 0), at(second + 16, 1));
        assert!(
            memory.find(first, 8, Some(1)).is_err(),
            "mapped for GPU 0 alone"
        );
        assert!(memory.find(first + 4092, 8, Some(0)).is_err(), "runs out");
        memory.release(id);
        memory.unmap(first);
        assert_eq!(memory.physical(id).bytes.len(), 4096, "still mapped");
        memory.unmap(second);
        assert!(memory.physical[id.0 as usize].is_none());
    }

    #[test]
    fn more_than_the_host_has_is_refused() {
        let mut memory = Memory::default();
        assert!(memory.create(0, 1 << 62).is_none());
        assert!(memory.create(0, u64::MAX).is_none());
        assert_eq!(host_bytes(1 << 20), 3 << 20);
    }
}
