//! [`GlobalMemory`]: the memory of a host's GPUs, and the addresses at which it is mapped.

use super::shadow::{ShadowCell, WORD_BYTES};
use std::collections::BTreeMap;
use std::ops::Range;

/// The first address of simulated memory. These addresses are not canonical, so no memory of this process can be there.
/// A kernel that accesses memory without a primitive faults at once.
const FIRST_ADDRESS: u64 = 1 << 60;

/// The gap between two reservations, so that an access past the end of one does not reach the next one.
const GAP_BYTES: u64 = 1 << 21;

/// The number of a piece of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhysicalId(pub u64);

/// Physical memory of a GPU, and the last accesses to each word of this memory.
pub(super) struct PhysicalMemory {
    pub bytes: Vec<u8>,
    pub cells: Vec<ShadowCell>,
    pub device: u32,
    /// The blocks into which the program has divided the memory, by offset.
    blocks: BTreeMap<u64, Block>,
    /// The number of mappings.
    mappings: u32,
    released: bool,
}

/// A part of physical memory whose bytes have names.
struct Block {
    bytes: u64,
    names: NameOfOffset,
}

/// Returns the name of the byte at an offset of a block, if it has one.
pub(super) type NameOfOffset = Box<dyn Fn(u64) -> Option<String> + Send>;

impl std::fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes on GPU {}", self.bytes.len(), self.device)
    }
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    to: MappingTarget,
}

#[derive(Clone, Copy, Debug)]
enum MappingTarget {
    Physical {
        id: PhysicalId,
        device: u32,
    },
    /// Memory of this process, at its own address.
    Host,
}

/// The mapping at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Global { id: PhysicalId, offset: usize },
    Host { address: u64 },
}

/// The operation on a range of memory.
pub(super) enum Transfer<'a> {
    /// Copy the memory to this buffer.
    Read(&'a mut [u8]),
    /// Overwrite the memory with these bytes.
    Write(&'a [u8]),
}

impl Transfer<'_> {
    /// Returns whether the memory is overwritten.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Write(_))
    }

    /// Returns the transfer of a part of the bytes.
    pub fn part(&mut self, bytes: Range<usize>) -> Transfer<'_> {
        match self {
            Self::Read(to) => Transfer::Read(&mut to[bytes]),
            Self::Write(from) => Transfer::Write(&from[bytes]),
        }
    }

    /// Copies the bytes from or to `memory`.
    pub fn perform(self, memory: &mut [u8]) {
        match self {
            Self::Read(to) => to.copy_from_slice(memory),
            Self::Write(from) => memory.copy_from_slice(from),
        }
    }
}

/// All memory of a host's GPUs, and its mappings.
#[derive(Debug)]
pub(super) struct GlobalMemory {
    next_address: u64,
    /// Physical memory by its number. An element is `None` if the memory was freed.
    physical: Vec<Option<PhysicalMemory>>,
    mappings: BTreeMap<u64, Mapping>,
}

impl Default for GlobalMemory {
    fn default() -> Self {
        Self {
            next_address: FIRST_ADDRESS,
            // A handle of 0 is not valid, so no memory has this number.
            physical: vec![None],
            mappings: BTreeMap::new(),
        }
    }
}

impl GlobalMemory {
    /// Creates physical memory. Returns `None` if the machine that runs the simulator has too little memory.
    pub fn create(&mut self, device: u32, bytes: u64) -> Option<PhysicalId> {
        let id = PhysicalId(self.physical.len() as u64);
        let size = usize::try_from(bytes).ok()?;
        let physical = PhysicalMemory {
            // The content is undefined on a GPU. This value reads as a NaN in bf16 and in fp32.
            bytes: filled(size, 0xff)?,
            cells: filled(size.div_ceil(WORD_BYTES), ShadowCell::default())?,
            device,
            blocks: BTreeMap::new(),
            mappings: 0,
            released: false,
        };
        self.physical.push(Some(physical));
        Some(id)
    }

    /// Frees physical memory as soon as it has no mapping.
    pub fn release(&mut self, id: PhysicalId) {
        if let Some(physical) = self.physical_mut(id) {
            physical.released = true;
        }
        self.drop_unused(id);
    }

    /// Reserves addresses that were never reserved before.
    pub fn reserve(&mut self, bytes: u64) -> u64 {
        let address = self.next_address;
        self.next_address = (address + bytes + GAP_BYTES).next_multiple_of(GAP_BYTES);
        address
    }

    /// Maps the whole of physical memory at `address`. Kernels of `device` may then access it.
    pub fn map(&mut self, address: u64, id: PhysicalId, device: u32) {
        if let Some(physical) = self.physical_mut(id) {
            physical.mappings += 1;
            let bytes = physical.bytes.len() as u64;
            self.mappings.insert(
                address,
                Mapping {
                    bytes,
                    to: MappingTarget::Physical { id, device },
                },
            );
        }
    }

    /// Makes memory of this process accessible at its own address.
    pub fn map_host(&mut self, address: u64, bytes: u64) {
        self.mappings.insert(
            address,
            Mapping {
                bytes,
                to: MappingTarget::Host,
            },
        );
    }

    /// Removes a mapping.
    pub fn unmap(&mut self, address: u64) {
        let Some(Mapping {
            to: MappingTarget::Physical { id, .. },
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

    /// Returns the mapping at `address`, or the reason why `device` cannot access `bytes` bytes there. Copies pass
    /// no device, since they may access the memory of all GPUs.
    pub fn resolve(
        &self,
        address: u64,
        bytes: u64,
        device: Option<u32>,
    ) -> Result<Location, String> {
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
            MappingTarget::Physical { device: owner, .. }
                if device.is_some_and(|device| device != owner) =>
            {
                Err(format!(
                    "the memory at {address:#x} is mapped for GPU {owner}, not for this one"
                ))
            }
            MappingTarget::Physical { id, .. } => {
                if device.is_some() {
                    self.check_block(id, offset, bytes)?;
                }
                Ok(Location::Global {
                    id,
                    offset: offset as usize,
                })
            }
            MappingTarget::Host => Ok(Location::Host { address }),
        }
    }

    /// Checks that the bytes are inside one block, if the memory is divided into blocks.
    fn check_block(&self, id: PhysicalId, offset: u64, bytes: u64) -> Result<(), String> {
        let physical = self.physical.get(id.0 as usize).and_then(Option::as_ref);
        let Some(physical) = physical.filter(|physical| !physical.blocks.is_empty()) else {
            return Ok(());
        };
        let end = offset.saturating_add(bytes);
        match physical.blocks.range(..=offset).next_back() {
            Some((start, block)) if end <= start + block.bytes => Ok(()),
            Some((start, block)) => Err(format!(
                "{bytes} bytes at {:#x} behind the start of a block lie outside of it; it has {:#x} bytes",
                offset - start,
                block.bytes
            )),
            None => Err(format!(
                "{bytes} bytes at {offset:#x} of an allocation lie before its first block"
            )),
        }
    }

    /// Makes the `bytes` bytes at `address` a block with these names, for findings. The block replaces the blocks that it
    /// overlaps. In memory with blocks, kernels may only access blocks.
    pub fn name(&mut self, address: u64, bytes: u64, names: NameOfOffset) {
        if let Ok(Location::Global { id, offset }) = self.resolve(address, bytes, None) {
            let (blocks, start) = (&mut self.physical(id).blocks, offset as u64);
            blocks.retain(|at, block| at + block.bytes <= start || start + bytes <= *at);
            blocks.insert(start, Block { bytes, names });
        }
    }

    /// Returns physical memory that [`Self::resolve`] has found.
    ///
    /// # Panics
    /// Panics if it was freed since then.
    pub fn physical(&mut self, id: PhysicalId) -> &mut PhysicalMemory {
        self.physical_mut(id)
            .expect("the memory was not freed since it was resolved")
    }

    fn physical_mut(&mut self, id: PhysicalId) -> Option<&mut PhysicalMemory> {
        self.physical.get_mut(id.0 as usize)?.as_mut()
    }
}

impl GlobalMemory {
    /// Returns the shadow cells of all memory.
    pub fn all_cells(&mut self) -> Vec<&mut [ShadowCell]> {
        let all = self.physical.iter_mut().flatten();
        all.map(|memory| memory.cells.as_mut_slice()).collect()
    }
}

impl PhysicalMemory {
    /// Describes a byte for a finding: its name if it has one, and the GPU.
    pub fn describe(&self, offset: usize) -> String {
        let offset = offset as u64;
        let block = self.blocks.range(..=offset).next_back();
        let block = block.filter(|(start, block)| offset < **start + block.bytes);
        let name = block.and_then(|(start, block)| (block.names)(offset - start));
        let name = name.unwrap_or_else(|| format!("byte {offset} of an allocation"));
        format!("{name} on GPU {}", self.device)
    }

    /// Returns the shadow cells of `bytes` bytes at `offset`.
    pub fn cells_of(&mut self, offset: usize, bytes: usize) -> &mut [ShadowCell] {
        &mut self.cells[offset / WORD_BYTES..(offset + bytes).div_ceil(WORD_BYTES)]
    }
}

/// Returns a vector of `count` copies of `value`, or `None` if the memory does not suffice.
fn filled<T: Clone>(count: usize, value: T) -> Option<Vec<T>> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(count).ok()?;
    elements.resize(count, value);
    Some(elements)
}

/// Returns how many bytes of the machine that runs the simulator `bytes` bytes of simulated memory take.
#[must_use]
pub const fn host_bytes(bytes: u64) -> u64 {
    bytes.saturating_mul((WORD_BYTES + size_of::<ShadowCell>()) as u64) / WORD_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_memory_lead_to_the_same_bytes() {
        let mut memory = GlobalMemory::default();
        let id = memory.create(0, 4096).expect("memory");
        let (first, second) = (memory.reserve(4096), memory.reserve(4096));
        memory.map(first, id, 0);
        memory.map(second, id, 1);
        let at = |address, device| memory.resolve(address, 8, Some(device)).expect("mapped");
        assert_eq!(at(first + 16, 0), at(second + 16, 1));
        assert!(
            memory.resolve(first, 8, Some(1)).is_err(),
            "mapped for GPU 0 alone"
        );
        assert!(
            memory.resolve(first + 4092, 8, Some(0)).is_err(),
            "runs out"
        );
        memory.release(id);
        memory.unmap(first);
        assert_eq!(memory.physical(id).bytes.len(), 4096, "still mapped");
        memory.unmap(second);
        assert!(memory.physical[id.0 as usize].is_none());
    }

    #[test]
    fn kernels_access_only_the_blocks_of_divided_memory() {
        let mut memory = GlobalMemory::default();
        let id = memory.create(0, 4096).expect("memory");
        let start = memory.reserve(4096);
        memory.map(start, id, 0);
        let named = |name: &'static str| Box::new(move |at| Some(format!("{name}+{at}")));
        let access = |memory: &GlobalMemory, at, bytes| memory.resolve(start + at, bytes, Some(0));
        access(&memory, 100, 8).expect("not divided yet");
        memory.name(start + 256, 512, named("first"));
        memory.name(start + 1024, 256, named("second"));
        access(&memory, 256, 512).expect("all of the first block");
        for (at, bytes) in [(0, 8), (248, 16), (764, 8), (900, 4), (1020, 8)] {
            access(&memory, at, bytes).expect_err("outside");
            memory.resolve(start + at, bytes, None).expect("copies may");
        }
        assert_eq!(memory.physical(id).describe(1028), "second+4 on GPU 0");
        memory.name(start + 512, 600, named("third"));
        assert_eq!(memory.physical(id).describe(600), "third+88 on GPU 0");
        access(&memory, 256, 8).expect_err("replaced");
    }

    #[test]
    fn more_than_the_host_has_is_refused() {
        let mut memory = GlobalMemory::default();
        assert!(memory.create(0, 1 << 62).is_none());
        assert!(memory.create(0, u64::MAX).is_none());
        assert_eq!(host_bytes(1 << 20), 3 << 20);
    }
}
