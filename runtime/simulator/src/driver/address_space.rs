//! [`AddressSpace`]: the allocated, reserved and mapped memory of a simulated host. All addresses that the program
//! passes are checked here.

use super::result::{Code, Result};
use super::{PhysicalId, World};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use std::alloc::Layout;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The unit of mapped memory. GPUs have a unit of 2 MiB. Simulated GPUs have a smaller unit, since new memory is
/// filled, and tests map many small workspaces.
pub(super) const GRANULARITY_BYTES: u64 = 64 << 10;
/// The memory of a simulated GPU.
pub(super) const TOTAL_BYTES: u64 = 64 << 30;
/// The alignment of pinned memory.
const PAGE_BYTES: usize = 4096;

/// Physical memory of a GPU.
#[derive(Debug)]
struct PhysicalAllocation {
    id: PhysicalId,
    device: u32,
    bytes: u64,
    handles: u32,
    mappings: u32,
    /// The descriptor by which other processes can import the memory; `None` until the memory is exported.
    exported: Option<OwnedFd>,
}

/// Physical memory at an address.
#[derive(Debug)]
struct Mapping {
    bytes: u64,
    /// The handle of the physical memory.
    physical: u64,
    /// Whether a device may access it. Only then it is mapped in the world as well.
    accessible: bool,
}

/// The kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemorySpace {
    /// Memory of a GPU.
    Device,
    /// Pinned memory of the host.
    PinnedHost,
    /// Memory of the program that the driver does not know.
    Unregistered,
}

/// All memory of a host.
#[derive(Debug, Default)]
pub(super) struct AddressSpace {
    /// Reserved ranges: address and size.
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
    /// Plain allocations: address and handle.
    allocations: HashMap<u64, u64>,
    /// Pinned memory: address and size.
    pinned: BTreeMap<u64, usize>,
    /// Physical memory by its handle.
    physical: HashMap<u64, PhysicalAllocation>,
    last_handle: u64,
}

impl AddressSpace {
    /// Creates physical memory, and returns its handle.
    pub fn create(&mut self, world: &mut World, device: u32, bytes: u64) -> Result<u64> {
        if bytes == 0 || bytes > self.free_bytes(device) {
            return Err(Code::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let Some(id) = world.create(device, bytes) else {
            tracing::error!(
                "this machine has not enough memory for {bytes} bytes of a simulated GPU"
            );
            return Err(Code::CUDA_ERROR_OUT_OF_MEMORY);
        };
        self.last_handle += 1;
        let physical = PhysicalAllocation {
            id,
            device,
            bytes,
            handles: 1,
            mappings: 0,
            exported: None,
        };
        self.physical.insert(self.last_handle, physical);
        Ok(self.last_handle)
    }

    /// Releases a handle. The memory is freed when it has no handle and no mapping.
    pub fn release(&mut self, world: &mut World, handle: u64) -> Result<()> {
        let physical = self.physical_mut(handle)?;
        if physical.handles == 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        physical.handles -= 1;
        if physical.handles == 0 {
            world.release(physical.id);
        }
        self.forget_unused(handle);
        Ok(())
    }

    /// Returns a file descriptor for the memory, which [`Self::import`] accepts.
    pub fn export(&mut self, handle: u64) -> Result<OwnedFd> {
        let physical = self.physical_mut(handle)?;
        if physical.exported.is_none() {
            let fd = memfd_create("mkernel-simulated-memory", MemfdFlags::CLOEXEC);
            physical.exported = Some(fd.map_err(|_| Code::CUDA_ERROR_OPERATING_SYSTEM)?);
        }
        let fd = physical.exported.as_ref().map(OwnedFd::try_clone);
        fd.and_then(std::result::Result::ok)
            .ok_or(Code::CUDA_ERROR_OPERATING_SYSTEM)
    }

    /// Returns the handle of the memory that a descriptor was exported for. The memory must be of this simulated host.
    pub fn import(&mut self, fd: BorrowedFd<'_>) -> Result<u64> {
        let identity = |fd: BorrowedFd<'_>| fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
        let wanted = identity(fd).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let found = self.physical.iter_mut().find(|(_, physical)| {
            let exported = physical.exported.as_ref();
            physical.handles > 0 && exported.and_then(|fd| identity(fd.as_fd())) == Some(wanted)
        });
        let Some((&handle, physical)) = found else {
            tracing::error!(
                "the memory to import is not of this simulated host; all ranks of a simulated job must be in one process"
            );
            return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
        };
        physical.handles += 1;
        Ok(handle)
    }

    /// Reserves addresses without memory.
    pub fn reserve(&mut self, world: &mut World, bytes: u64) -> Result<u64> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY_BYTES) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let address = world.reserve(bytes);
        self.reserved.insert(address, bytes);
        Ok(address)
    }

    /// Returns reserved addresses.
    pub fn unreserve(&mut self, world: &mut World, address: u64, bytes: u64) -> Result<()> {
        let is_mapped = containing(&self.mapped, address, |m| m.bytes).is_some();
        if self.reserved.get(&address) != Some(&bytes) || is_mapped {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        self.reserved.remove(&address);
        world.unreserve(address, bytes);
        Ok(())
    }

    /// Maps the whole of physical memory at reserved addresses. No device may access it yet.
    pub fn map(&mut self, address: u64, bytes: u64, handle: u64) -> Result<()> {
        let reserved = containing(&self.reserved, address, |bytes| *bytes);
        let inside =
            reserved.is_some_and(|(start, size)| address.saturating_add(bytes) <= start + size);
        let taken = overlaps(&self.mapped, address, bytes);
        let physical = self.physical_mut(handle)?;
        if !inside || taken || bytes != physical.bytes {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        physical.mappings += 1;
        let mapped = Mapping {
            bytes,
            physical: handle,
            accessible: false,
        };
        self.mapped.insert(address, mapped);
        Ok(())
    }

    /// Lets a device access a mapping.
    pub fn allow(
        &mut self,
        world: &mut World,
        address: u64,
        bytes: u64,
        device: u32,
    ) -> Result<()> {
        let mapped = self.mapped.get_mut(&address);
        let mapped = mapped
            .filter(|mapped| mapped.bytes == bytes)
            .ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        if mapped.accessible {
            // The world supports one device per mapping. The program can map the memory a second time for another
            // device.
            return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
        }
        let physical = &self.physical[&mapped.physical];
        mapped.accessible = true;
        world.map(address, physical.id, device);
        Ok(())
    }

    /// Removes a mapping.
    pub fn unmap(&mut self, world: &mut World, address: u64, bytes: u64) -> Result<()> {
        if self.mapped.get(&address).is_none_or(|m| m.bytes != bytes) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        if let Some(mapped) = self.mapped.remove(&address) {
            if mapped.accessible {
                world.unmap(address);
            }
            self.physical_mut(mapped.physical)?.mappings -= 1;
            self.forget_unused(mapped.physical);
        }
        Ok(())
    }

    /// Creates, reserves and maps memory of exactly `bytes` bytes. Returns address 0 for 0 bytes.
    pub fn allocate(&mut self, world: &mut World, device: u32, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let handle = self.create(world, device, bytes)?;
        let address = world.reserve(bytes);
        self.reserved.insert(address, bytes);
        self.map(address, bytes, handle)?;
        self.allow(world, address, bytes, device)?;
        self.allocations.insert(address, handle);
        Ok(address)
    }

    /// Returns whether `address` is the start of a plain allocation, or 0.
    pub fn is_allocation(&self, address: u64) -> bool {
        address == 0 || self.allocations.contains_key(&address)
    }

    /// Frees memory of [`Self::allocate`].
    pub fn free(&mut self, world: &mut World, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let handle = self.allocations.remove(&address);
        let handle = handle.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let bytes = self.physical_mut(handle)?.bytes;
        self.unmap(world, address, bytes)?;
        self.release(world, handle)?;
        self.unreserve(world, address, bytes)
    }

    /// Allocates pinned memory of the host, which is zero.
    pub fn pin(&mut self, world: &mut World, bytes: usize) -> Result<u64> {
        let layout = pinned_layout(bytes)?;
        // SAFETY: the layout's size is not 0.
        let address = unsafe { std::alloc::alloc_zeroed(layout) } as u64;
        if address == 0 {
            return Err(Code::CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.pinned.insert(address, bytes);
        // SAFETY: the memory lives until `unpin`. A program that accesses pinned memory while a kernel runs must use
        // atomics, as with real GPUs.
        unsafe { world.adopt_host(address, bytes as u64) };
        Ok(address)
    }

    /// Frees pinned memory.
    pub fn unpin(&mut self, world: &mut World, address: u64) -> Result<()> {
        let bytes = self.pinned.remove(&address);
        let layout = pinned_layout(bytes.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?)?;
        world.disown_host(address);
        // SAFETY: `pin` has allocated the memory with this layout. It was in the table, so it has not been freed.
        unsafe { std::alloc::dealloc(address as *mut u8, layout) };
        Ok(())
    }

    /// Returns the kind of memory of a range. The range must not extend beyond the memory in which it starts.
    pub fn space_of(&self, address: u64, bytes: u64) -> Result<MemorySpace> {
        let end = address
            .checked_add(bytes)
            .ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let device = containing(&self.mapped, address, |m| {
            if m.accessible { m.bytes } else { 0 }
        });
        let pinned = containing(&self.pinned, address, |bytes| *bytes as u64);
        let (space, (start, size)) = match (device, pinned) {
            (Some(range), _) => (MemorySpace::Device, range),
            (_, Some(range)) => (MemorySpace::PinnedHost, range),
            _ => return Ok(MemorySpace::Unregistered),
        };
        if end > start + size {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        Ok(space)
    }

    /// Returns the number of free bytes of a device.
    pub fn free_bytes(&self, device: u32) -> u64 {
        let used = self.physical.values().filter(|p| p.device == device);
        TOTAL_BYTES.saturating_sub(used.map(|physical| physical.bytes).sum())
    }

    fn physical_mut(&mut self, handle: u64) -> Result<&mut PhysicalAllocation> {
        self.physical
            .get_mut(&handle)
            .ok_or(Code::CUDA_ERROR_INVALID_VALUE)
    }

    fn forget_unused(&mut self, handle: u64) {
        let unused =
            |physical: &PhysicalAllocation| physical.handles == 0 && physical.mappings == 0;
        if self.physical.get(&handle).is_some_and(unused) {
            self.physical.remove(&handle);
        }
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        // The engine has ended, so nothing accesses pinned memory any more.
        for (address, bytes) in std::mem::take(&mut self.pinned) {
            if let Ok(layout) = pinned_layout(bytes) {
                // SAFETY: `pin` has allocated the memory with this layout. It was still in the table.
                unsafe { std::alloc::dealloc(address as *mut u8, layout) };
            }
        }
    }
}

/// Returns the layout of pinned memory.
fn pinned_layout(bytes: usize) -> Result<Layout> {
    let bytes = Some(bytes).filter(|bytes| *bytes > 0);
    bytes
        .and_then(|bytes| Layout::from_size_align(bytes, PAGE_BYTES).ok())
        .ok_or(Code::CUDA_ERROR_INVALID_VALUE)
}

/// Returns the start and the size of the range in `table` that contains `address`.
fn containing<T>(
    table: &BTreeMap<u64, T>,
    address: u64,
    bytes: impl Fn(&T) -> u64,
) -> Option<(u64, u64)> {
    let (&start, value) = table.range(..=address).next_back()?;
    let size = bytes(value);
    (address - start < size).then_some((start, size))
}

/// Returns whether a range overlaps with a mapping.
fn overlaps(table: &BTreeMap<u64, Mapping>, address: u64, bytes: u64) -> bool {
    containing(table, address, |m| m.bytes).is_some()
        || table
            .range(address..address.saturating_add(bytes))
            .next()
            .is_some()
}
