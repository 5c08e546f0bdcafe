//! Memory: on the GPU, for other processes to map, and pinned on the host.

use super::{bind, check, named, warn};
use crate::error::Error;
use cudarc::driver::{CudaContext, DriverError, result, sys};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Device memory that other processes can map.
pub(crate) struct Memory {
    handle: sys::CUmemGenericAllocationHandle,
    bytes: usize,
    ctx: Arc<CudaContext>,
}

impl Memory {
    /// At least `bytes` on the context's GPU; `for_nics` if these are to reach it too, where [`nic_access`] says that
    /// they can.
    pub fn allocate(ctx: &Arc<CudaContext>, bytes: u64, for_nics: bool) -> Result<Self, Error> {
        bind(ctx)?;
        // SAFETY: the struct is plain C data, for which all zeros is a value.
        let mut request: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        request.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        request.requestedHandleTypes = HANDLE_TYPE;
        request.location = location(ctx);
        request.allocFlags.gpuDirectRDMACapable = for_nics.into();
        let mut granularity = 0;
        let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: the pointers are to live values.
        let code = unsafe {
            sys::cuMemGetAllocationGranularity(&raw mut granularity, &raw const request, option)
        };
        check("cuMemGetAllocationGranularity", code)?;
        let bytes = rounded(bytes, granularity);
        let mut handle = 0;
        // SAFETY: the pointers are to live values, the size is a multiple of the granularity.
        check("cuMemCreate", unsafe {
            sys::cuMemCreate(&raw mut handle, bytes, &raw const request, 0)
        })?;
        Ok(Self {
            handle,
            bytes,
            ctx: ctx.clone(),
        })
    }

    /// Memory that another rank allocated with the same size.
    pub fn import(ctx: &Arc<CudaContext>, fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Error> {
        bind(ctx)?;
        let mut handle = 0;
        // The driver takes the descriptor itself where a pointer is declared.
        let os_handle = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the pointer is to a live handle, the descriptor is open.
        let code =
            unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, os_handle, HANDLE_TYPE) };
        check("cuMemImportFromShareableHandle", code)?;
        Ok(Self {
            handle,
            bytes,
            ctx: ctx.clone(),
        })
    }

    pub fn export(&self) -> Result<OwnedFd, Error> {
        bind(&self.ctx)?;
        let mut fd: c_int = -1;
        // SAFETY: for this handle type the driver writes one int, to which the pointer points.
        let code = unsafe {
            sys::cuMemExportToShareableHandle((&raw mut fd).cast(), self.handle, HANDLE_TYPE, 0)
        };
        check("cuMemExportToShareableHandle", code)?;
        // SAFETY: the driver opened the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Its size, a multiple of the granularity.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        warn(bind(&self.ctx));
        // SAFETY: the handle is ours; mappings keep the memory itself alive.
        warn(check("cuMemRelease", unsafe {
            sys::cuMemRelease(self.handle)
        }));
    }
}

/// What NICs can do with memory of a GPU.
pub(crate) struct NicAccess {
    /// Whether they can reach it at all; if not, why.
    pub memory: Result<(), &'static str>,
    /// Whether the driver gives dma-bufs of it.
    pub dma_buf: bool,
}

/// What the driver says of NICs and the context's GPU.
pub(crate) fn nic_access(ctx: &CudaContext) -> Result<NicAccess, Error> {
    use sys::CUdevice_attribute as Attribute;
    let figure = |attribute| named("cuDeviceGetAttribute", ctx.attribute(attribute));
    let is_able =
        figure(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)? != 0;
    let ordering = figure(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?;
    let in_order =
        sys::CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32;
    let memory = match (is_able, ordering >= in_order) {
        (false, _) => Err("the driver does not let NICs reach memory of this GPU"),
        // A kernel could see that a message is there before it is.
        (true, false) => Err("the GPU does not keep the order of what NICs write"),
        (true, true) => Ok(()),
    };
    Ok(NicAccess {
        memory,
        dma_buf: figure(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? != 0,
    })
}

const HANDLE_TYPE: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn location(ctx: &CudaContext) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: ctx.cu_device(),
    }
}

/// `bytes`, at least 1, rounded up to a multiple of `granularity`.
fn rounded(bytes: u64, granularity: usize) -> usize {
    usize::try_from(bytes.max(1))
        .unwrap_or(usize::MAX / 2)
        .next_multiple_of(granularity.max(1))
}

/// [`Memory`] at an address of this process, for this process's GPU to read and write.
pub(crate) struct Mapping {
    address: sys::CUdeviceptr,
    mapped: bool,
    memory: Memory,
}

impl Mapping {
    pub fn new(memory: Memory) -> Result<Self, Error> {
        bind(&memory.ctx)?;
        let mut address = 0;
        // SAFETY: the pointer is to a live address; the driver chooses the place.
        let code = unsafe { sys::cuMemAddressReserve(&raw mut address, memory.bytes, 0, 0, 0) };
        check("cuMemAddressReserve", code)?;
        let mut mapping = Self {
            address,
            mapped: false,
            memory,
        };
        let bytes = mapping.memory.bytes;
        // SAFETY: the range was reserved above and is not mapped yet.
        check("cuMemMap", unsafe {
            sys::cuMemMap(address, bytes, 0, mapping.memory.handle, 0)
        })?;
        mapping.mapped = true;
        let access = sys::CUmemAccessDesc {
            location: location(&mapping.memory.ctx),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range is mapped as a whole; one descriptor is given.
        check("cuMemSetAccess", unsafe {
            sys::cuMemSetAccess(address, bytes, &raw const access, 1)
        })?;
        Ok(mapping)
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// A dma-buf of the whole.
    pub fn dma_buf(&self) -> Result<OwnedFd, Error> {
        bind(&self.memory.ctx)?;
        let mut fd: c_int = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let (address, bytes) = (self.address, self.memory.bytes);
        // SAFETY: for this handle type the driver writes one int, to which the pointer points; the range is mapped, and
        // a multiple of the host's pages.
        let code = unsafe {
            sys::cuMemGetHandleForAddressRange((&raw mut fd).cast(), address, bytes, kind, 0)
        };
        check("cuMemGetHandleForAddressRange", code)?;
        // SAFETY: the driver opened the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        warn(bind(&self.memory.ctx));
        if self.mapped {
            // SAFETY: the range is mapped. What was given to a kernel or to copies is a part of an operator or a fabric test,
            // which the reaper drops when it has seen their end; the fabric in it ends its proxy, and waits for its copies,
            // before it drops its region. What was never given to any has waited for its own zeroing.
            warn(check("cuMemUnmap", unsafe {
                sys::cuMemUnmap(self.address, self.memory.bytes)
            }));
        }
        // SAFETY: the range was reserved by us and is not mapped any more.
        warn(check("cuMemAddressFree", unsafe {
            sys::cuMemAddressFree(self.address, self.memory.bytes)
        }));
    }
}

/// Pinned host memory that the GPU reads and writes too; zero at first, and aligned to a page.
pub(crate) struct Pinned {
    host: NonNull<u8>,
    bytes: usize,
    device_address: u64,
    ctx: Arc<CudaContext>,
}

// SAFETY: the memory is only accessed through atomics, and freed once.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub fn allocate(ctx: &Arc<CudaContext>, bytes: usize) -> Result<Self, Error> {
        bind(ctx)?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current.
        let raw = named("cuMemHostAlloc", unsafe {
            result::malloc_host(bytes, flags)
        })?;
        let Some(host) = NonNull::new(raw.cast::<u8>()) else {
            return named(
                "cuMemHostAlloc",
                Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)),
            );
        };
        // SAFETY: the memory is as long as this, and nobody else has it yet.
        unsafe { host.as_ptr().write_bytes(0, bytes) };
        let mut page = Self {
            host,
            bytes,
            device_address: 0,
            ctx: ctx.clone(),
        };
        // SAFETY: the pointers are to a live address and to the start of a mapped allocation.
        let code =
            unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut page.device_address, raw, 0) };
        check("cuMemHostGetDevicePointer", code)?;
        Ok(page)
    }

    /// Its address on the device.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// The host's address of the byte at `offset_bytes`.
    ///
    /// # Panics
    /// If it lies outside of the memory.
    pub fn host_address(&self, offset_bytes: usize) -> NonNull<u8> {
        assert!(offset_bytes < self.bytes, "a byte of the memory");
        // SAFETY: inside the memory.
        unsafe { self.host.add(offset_bytes) }
    }

    /// The word at `offset_bytes`.
    ///
    /// # Panics
    /// If it lies outside of the memory or is misaligned, which no caller in this crate asks for.
    pub fn word(&self, offset_bytes: usize) -> &AtomicU32 {
        self.atomic(offset_bytes)
    }

    /// The double word at `offset_bytes`; see [`Self::word`].
    pub fn double_word(&self, offset_bytes: usize) -> &AtomicU64 {
        self.atomic(offset_bytes)
    }

    /// `T` must be an atomic integer: all its values are bytes, and its alignment is its size.
    fn atomic<T: Atomic>(&self, offset_bytes: usize) -> &T {
        let size = size_of::<T>();
        let ends = offset_bytes.checked_add(size);
        assert!(
            offset_bytes.is_multiple_of(size) && ends.is_some_and(|ends| ends <= self.bytes),
            "{size} bytes of the memory"
        );
        // SAFETY: all of it is inside the memory, aligned, and alive as long as `self`; the device accesses it with
        // atomics, too.
        unsafe { &*self.host.as_ptr().add(offset_bytes).cast::<T>() }
    }
}

trait Atomic {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}

impl Drop for Pinned {
    fn drop(&mut self) {
        warn(bind(&self.ctx));
        // SAFETY: allocated by cuMemHostAlloc; nothing uses it any more, as for a mapping.
        warn(named("cuMemFreeHost", unsafe {
            result::free_host(self.host.as_ptr().cast())
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "simulator")]
    use std::sync::atomic::Ordering;

    #[cfg(feature = "simulator")]
    #[test]
    fn words_lie_in_the_memory_as_a_whole() {
        let ranks = crate::Communicator::simulated(&crate::Simulation::default());
        let ranks = ranks.expect("simulated GPUs");
        let memory = Pinned::allocate(ranks[0].context(), 12).expect("pinned");
        assert_eq!(memory.double_word(0).load(Ordering::Relaxed), 0);
        assert_eq!(memory.word(8).load(Ordering::Relaxed), 0);
        let beyond = || memory.double_word(8).load(Ordering::Relaxed);
        let beyond = std::panic::catch_unwind(std::panic::AssertUnwindSafe(beyond));
        assert!(beyond.is_err(), "half of it lies behind the end");
    }

    #[test]
    fn sizes_are_whole_granules() {
        assert_eq!(rounded(0, 2 << 20), 2 << 20);
        assert_eq!(rounded(2 << 20, 2 << 20), 2 << 20);
        assert_eq!(rounded((2 << 20) + 1, 2 << 20), 4 << 20);
    }
}
