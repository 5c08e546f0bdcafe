//! [`Memory`]: what is allocated, reserved and mapped on a simulated host. Every address is checked here first.

use super::{Code, PhysicalId, Result, World};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use std::alloc::Layout;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Memory is mapped in multiples of this. GPUs have 2 MiB. It is less here, since new memory is filled, and tests map many
/// small workspaces.
pub(super) const GRANULARITY_BYTES: u64 = 64 << 10;
/// Memory of a simulated GPU. Pages take room on this machine when they are first written.
pub(super) const TOTAL_BYTES: u64 = 64 << 30;
/// Where pinned memory starts.
const PAGE_BYTES: usize = 4096;

#[derive(Debug)]
struct Physical {
    id: PhysicalId,
    device: u32,
    bytes: u64,
    handles: u32,
    mappings: u32,
    /// What stands for it in other hands.
    exported: Option<OwnedFd>,
}

#[derive(Debug)]
struct Mapped {
    bytes: u64,
    physical: u64,
    /// Whether a device may access it, so that the engine knows it.
    accessible: bool,
}

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Memory of a GPU.
    Device,
    /// Pinned memory of the host.
    Pinned,
    /// Memory that the driver does not know.
    Other,
}

/// The memory of a host.
#[derive(Debug, Default)]
pub(super) struct Memory {
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapped>,
    /// Plain allocations, with their handle.
    allocations: HashMap<u64, u64>,
    pinned: BTreeMap<u64, usize>,
    physical: HashMap<u64, Physical>,
    last_handle: u64,
}

impl Memory {
    /// Physical memory; returns its handle.
    pub fn create(&mut self, world: &mut World, device: u32, bytes: u64) -> Result<u64> {
        if bytes == 0 || bytes > self.free_bytes(device) {
            return Err(Code::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let Some(id) = world.create(device, bytes) else {
            tracing::error!("this host has not enough memory for {bytes} bytes of a simulated GPU");
            return Err(Code::CUDA_ERROR_OUT_OF_MEMORY);
        };
        self.last_handle += 1;
        let physical = Physical {
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

    /// Gives a handle back.
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

    /// A descriptor that stands for the memory, for [`Self::import`].
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

    /// The memory that a descriptor stands for; it must be of this simulated host.
    pub fn import(&mut self, fd: BorrowedFd<'_>) -> Result<u64> {
        let identity = |fd: BorrowedFd<'_>| fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
        let wanted = identity(fd).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let found = self.physical.iter_mut().find(|(_, physical)| {
            let exported = physical.exported.as_ref();
            physical.handles > 0 && exported.and_then(|fd| identity(fd.as_fd())) == Some(wanted)
        });
        let Some((&handle, physical)) = found else {
            tracing::error!(
                "the memory to import is not of this simulated host; all ranks of a simulated job must live in one process"
            );
            return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
        };
        physical.handles += 1;
        Ok(handle)
    }

    /// Addresses without memory.
    pub fn reserve(&mut self, world: &mut World, bytes: u64) -> Result<u64> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY_BYTES) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let address = world.reserve(bytes);
        self.reserved.insert(address, bytes);
        Ok(address)
    }

    /// Gives addresses back.
    pub fn unreserve(&mut self, world: &mut World, address: u64, bytes: u64) -> Result<()> {
        let is_mapped = containing(&self.mapped, address, |m| m.bytes).is_some();
        if self.reserved.get(&address) != Some(&bytes) || is_mapped {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        self.reserved.remove(&address);
        world.unreserve(address, bytes);
        Ok(())
    }

    /// Puts memory, as a whole, at reserved addresses. Nobody may access it yet.
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
        let mapped = Mapped {
            bytes,
            physical: handle,
            accessible: false,
        };
        self.mapped.insert(address, mapped);
        Ok(())
    }

    /// Lets a device access what is mapped.
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
            // The engine knows one device for each mapping; map it again for another.
            return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
        }
        let physical = &self.physical[&mapped.physical];
        mapped.accessible = true;
        world.map(address, physical.id, device);
        Ok(())
    }

    /// Takes memory away from its addresses.
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

    /// Memory with an address, all in one, and exactly as long as asked for. Nothing has the address 0.
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

    /// Whether `address` is the start of a plain allocation, or nothing.
    pub fn is_allocation(&self, address: u64) -> bool {
        address == 0 || self.allocations.contains_key(&address)
    }

    /// Frees what [`Self::allocate`] gave.
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

    /// Pinned memory of the host, zero at first.
    pub fn pin(&mut self, world: &mut World, bytes: usize) -> Result<u64> {
        let layout = pinned_layout(bytes)?;
        // SAFETY: the layout's size is not 0.
        let address = unsafe { std::alloc::alloc_zeroed(layout) } as u64;
        if address == 0 {
            return Err(Code::CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.pinned.insert(address, bytes);
        // SAFETY: the memory lives until `unpin`; the program that uses pinned memory beside a running kernel must
        // use atomics on GPUs as well.
        unsafe { world.adopt_host(address, bytes as u64) };
        Ok(address)
    }

    /// Frees pinned memory.
    pub fn unpin(&mut self, world: &mut World, address: u64) -> Result<()> {
        let bytes = self.pinned.remove(&address);
        let layout = pinned_layout(bytes.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?)?;
        world.disown_host(address);
        // SAFETY: allocated by `pin` with this layout, and not freed yet: it was still in the table.
        unsafe { std::alloc::dealloc(address as *mut u8, layout) };
        Ok(())
    }

    /// Where a range lies. It must not leave the memory that it starts in.
    pub fn place(&self, address: u64, bytes: u64) -> Result<Place> {
        let end = address
            .checked_add(bytes)
            .ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let device = containing(&self.mapped, address, |m| {
            if m.accessible { m.bytes } else { 0 }
        });
        let pinned = containing(&self.pinned, address, |bytes| *bytes as u64);
        let (place, (start, size)) = match (device, pinned) {
            (Some(range), _) => (Place::Device, range),
            (_, Some(range)) => (Place::Pinned, range),
            _ => return Ok(Place::Other),
        };
        if end > start + size {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        Ok(place)
    }

    /// What is left on a device.
    pub fn free_bytes(&self, device: u32) -> u64 {
        let used = self.physical.values().filter(|p| p.device == device);
        TOTAL_BYTES.saturating_sub(used.map(|physical| physical.bytes).sum())
    }

    fn physical_mut(&mut self, handle: u64) -> Result<&mut Physical> {
        self.physical
            .get_mut(&handle)
            .ok_or(Code::CUDA_ERROR_INVALID_VALUE)
    }

    fn forget_unused(&mut self, handle: u64) {
        let unused = |physical: &Physical| physical.handles == 0 && physical.mappings == 0;
        if self.physical.get(&handle).is_some_and(unused) {
            self.physical.remove(&handle);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The engine has ended: nobody accesses them any more.
        for (address, bytes) in std::mem::take(&mut self.pinned) {
            if let Ok(layout) = pinned_layout(bytes) {
                // SAFETY: allocated by `pin` with this layout, and still in the table.
                unsafe { std::alloc::dealloc(address as *mut u8, layout) };
            }
        }
    }
}

fn pinned_layout(bytes: usize) -> Result<Layout> {
    let bytes = Some(bytes).filter(|bytes| *bytes > 0);
    bytes
        .and_then(|bytes| Layout::from_size_align(bytes, PAGE_BYTES).ok())
        .ok_or(Code::CUDA_ERROR_INVALID_VALUE)
}

/// The range of a table that `address` lies in: its start and its size.
fn containing<T>(
    table: &BTreeMap<u64, T>,
    address: u64,
    bytes: impl Fn(&T) -> u64,
) -> Option<(u64, u64)> {
    let (&start, value) = table.range(..=address).next_back()?;
    let size = bytes(value);
    (address - start < size).then_some((start, size))
}

fn overlaps(table: &BTreeMap<u64, Mapped>, address: u64, bytes: u64) -> bool {
    containing(table, address, |m| m.bytes).is_some()
        || table
            .range(address..address.saturating_add(bytes))
            .next()
            .is_some()
}
