//! Memory of the GPU that other processes can map, and pinned memory of the host.

use super::call::{bind, check, named, warn};
use crate::error::Error;
use cudarc::driver::{CudaContext, DriverError, result, sys};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Device memory that other processes can map.
pub(crate) struct DeviceMemory {
    handle: sys::CUmemGenericAllocationHandle,
    bytes: usize,
    ctx: Arc<CudaContext>,
}

impl DeviceMemory {
    /// Allocates at least `bytes` on the context's GPU. With `for_nics`, NICs can access the memory too; [`nic_access`]
    /// reports whether the GPU supports that.
    pub fn allocate(ctx: &Arc<CudaContext>, bytes: u64, for_nics: bool) -> Result<Self, Error> {
        let request = request(ctx, for_nics);
        let bytes = rounded(bytes, granularity(ctx, &request)?);
        let mut handle = 0;
        // SAFETY: the pointers refer to live values, and the size is a multiple of the granularity.
        check("cuMemCreate", unsafe {
            sys::cuMemCreate(&raw mut handle, bytes, &raw const request, 0)
        })?;
        Ok(Self {
            handle,
            bytes,
            ctx: ctx.clone(),
        })
    }

    /// Imports memory that another rank has exported. The memory must have the size of this rank's memory.
    pub fn import(ctx: &Arc<CudaContext>, fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Error> {
        bind(ctx)?;
        let mut handle = 0;
        // The driver expects the descriptor itself in place of the pointer.
        let os_handle = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the pointer refers to a live handle, and the descriptor is open.
        let code =
            unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, os_handle, HANDLE_TYPE) };
        check("cuMemImportFromShareableHandle", code)?;
        Ok(Self {
            handle,
            bytes,
            ctx: ctx.clone(),
        })
    }

    /// Returns the unit of allocations in bytes.
    pub fn unit_bytes(ctx: &Arc<CudaContext>, for_nics: bool) -> Result<u64, Error> {
        granularity(ctx, &request(ctx, for_nics)).map(|bytes| bytes as u64)
    }

    pub fn export(&self) -> Result<OwnedFd, Error> {
        bind(&self.ctx)?;
        let mut fd: c_int = -1;
        // SAFETY: for this handle type the driver writes one int, to which the pointer refers.
        let code = unsafe {
            sys::cuMemExportToShareableHandle((&raw mut fd).cast(), self.handle, HANDLE_TYPE, 0)
        };
        check("cuMemExportToShareableHandle", code)?;
        // SAFETY: the driver has opened the descriptor for this process.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Returns the size in bytes, which is a multiple of the granularity.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        warn(bind(&self.ctx));
        // SAFETY: this value owns the handle. Mappings keep the memory itself alive.
        warn(check("cuMemRelease", unsafe {
            sys::cuMemRelease(self.handle)
        }));
    }
}

fn request(ctx: &Arc<CudaContext>, for_nics: bool) -> sys::CUmemAllocationProp {
    // SAFETY: the struct is plain C data, for which all zeros is a valid value.
    let mut request: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    request.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    request.requestedHandleTypes = HANDLE_TYPE;
    request.location = location(ctx);
    request.allocFlags.gpuDirectRDMACapable = for_nics.into();
    request
}

fn granularity(ctx: &Arc<CudaContext>, request: &sys::CUmemAllocationProp) -> Result<usize, Error> {
    bind(ctx)?;
    let mut granularity = 0;
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: both pointers refer to live values.
    let code = unsafe {
        sys::cuMemGetAllocationGranularity(&raw mut granularity, &raw const *request, option)
    };
    check("cuMemGetAllocationGranularity", code)?;
    Ok(granularity)
}

/// Reads device memory into host memory, calls `edit`, and writes it back.
///
/// # Safety
/// The range must be mapped, and nothing else may access it.
#[cfg(feature = "testing")]
pub(crate) unsafe fn edit_memory(
    address: u64,
    bytes: usize,
    edit: impl FnOnce(&mut [u8]),
) -> Result<(), Error> {
    let mut copy = vec![0; bytes];
    // SAFETY: guaranteed by the caller.
    named("cuMemcpyDtoH", unsafe {
        result::memcpy_dtoh_sync(&mut copy, address)
    })?;
    edit(&mut copy);
    // SAFETY: guaranteed by the caller.
    named("cuMemcpyHtoD", unsafe {
        result::memcpy_htod_sync(address, &copy)
    })
}

/// The ways in which NICs can access the memory of a GPU.
pub(crate) struct NicAccess {
    /// Success if NICs can access the memory, or the reason why they cannot.
    pub memory: Result<(), &'static str>,
    /// Whether a kernel that sees the arrival of a message also sees its contents. Otherwise arrivals need flushes.
    pub keeps_order: bool,
    /// Whether the driver can export the memory as a dma-buf.
    pub dma_buf: bool,
}

/// Returns the ways in which NICs can access the memory of the context's GPU.
pub(crate) fn nic_access(ctx: &CudaContext) -> Result<NicAccess, Error> {
    use sys::CUdevice_attribute as Attribute;
    let figure = |attribute| named("cuDeviceGetAttribute", ctx.attribute(attribute));
    let is_able =
        figure(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)? != 0;
    let ordering = figure(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?;
    let in_order =
        sys::CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32;
    let memory = match is_able {
        false => Err("the driver does not let NICs access memory of this GPU"),
        true => Ok(()),
    };
    Ok(NicAccess {
        memory,
        keeps_order: ordering >= in_order,
        dma_buf: figure(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? != 0,
    })
}

const HANDLE_TYPE: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn location(ctx: &CudaContext) -> sys::CUmemLocation {
    const { assert!(size_of::<sys::CUmemLocation>() == 8) };
    // SAFETY: the struct is plain C data, for which all zeros are valid.
    let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: the struct is a type and an ordinal of 32 bits each. From CUDA 13.2 on, the ordinal is in a union whose name
    // bindgen has made up.
    unsafe {
        (&raw mut location)
            .cast::<c_int>()
            .add(1)
            .write(ctx.cu_device())
    };
    location
}

/// Returns `bytes`, but at least 1, rounded up to a multiple of `granularity`.
fn rounded(bytes: u64, granularity: usize) -> usize {
    usize::try_from(bytes.max(1))
        .unwrap_or(usize::MAX / 2)
        .next_multiple_of(granularity.max(1))
}

/// A mapping of [`DeviceMemory`] into the address space of this process. The context's GPU can read and write it.
pub(crate) struct Mapping {
    address: sys::CUdeviceptr,
    mapped: bool,
    memory: DeviceMemory,
}

impl Mapping {
    pub fn new(memory: DeviceMemory) -> Result<Self, Error> {
        bind(&memory.ctx)?;
        let mut address = 0;
        // SAFETY: the pointer refers to a live address. The driver chooses the range.
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
        // SAFETY: the whole range is mapped, and one descriptor is passed.
        check("cuMemSetAccess", unsafe {
            sys::cuMemSetAccess(address, bytes, &raw const access, 1)
        })?;
        Ok(mapping)
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Exports the whole memory as a dma-buf.
    pub fn dma_buf(&self) -> Result<OwnedFd, Error> {
        bind(&self.memory.ctx)?;
        let mut fd: c_int = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let (address, bytes) = (self.address, self.memory.bytes);
        // SAFETY: for this handle type the driver writes one int, to which the pointer refers. The range is mapped and
        // is a multiple of the host's page size.
        let code = unsafe {
            sys::cuMemGetHandleForAddressRange((&raw mut fd).cast(), address, bytes, kind, 0)
        };
        check("cuMemGetHandleForAddressRange", code)?;
        // SAFETY: the driver has opened the descriptor for this process.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        warn(bind(&self.memory.ctx));
        if self.mapped {
            // SAFETY: the range is mapped. Memory that was passed to a kernel or to copies belongs to an operator or a
            // fabric test, which the reaper drops after it has seen their end. The fabric in it ends its proxy and
            // waits for its copies before it drops its region. Memory that was never passed to a kernel or to copies
            // was zeroed, and its owner has waited for the zeroing.
            warn(check("cuMemUnmap", unsafe {
                sys::cuMemUnmap(self.address, self.memory.bytes)
            }));
        }
        // SAFETY: this value reserved the range, which is not mapped any more.
        warn(check("cuMemAddressFree", unsafe {
            sys::cuMemAddressFree(self.address, self.memory.bytes)
        }));
    }
}

/// Pinned memory of the host that the GPU can also read and write. It is zeroed at first and aligned to a page.
pub(crate) struct Pinned {
    host: NonNull<u8>,
    bytes: usize,
    device_address: u64,
    ctx: Arc<CudaContext>,
}

// SAFETY: the memory is accessed only through atomics, and freed once.
unsafe impl Send for Pinned {}
// SAFETY: see above.
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
        // SAFETY: the memory has this length, and nothing else refers to it yet.
        unsafe { host.as_ptr().write_bytes(0, bytes) };
        let mut page = Self {
            host,
            bytes,
            device_address: 0,
            ctx: ctx.clone(),
        };
        // SAFETY: the pointers refer to a live address and to the start of a mapped allocation.
        let code =
            unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut page.device_address, raw, 0) };
        check("cuMemHostGetDevicePointer", code)?;
        Ok(page)
    }

    /// Returns the address on the device.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// Returns the host address of the byte at `offset_bytes`.
    ///
    /// # Panics
    /// Panics if the byte is outside of the memory.
    pub fn host_address(&self, offset_bytes: usize) -> NonNull<u8> {
        assert!(offset_bytes < self.bytes, "a byte of the memory");
        // SAFETY: the offset is inside of the memory.
        unsafe { self.host.add(offset_bytes) }
    }

    /// Returns the word at `offset_bytes`.
    ///
    /// # Panics
    /// Panics if the word is outside of the memory or misaligned. No caller in this crate asks for such a word.
    pub fn word(&self, offset_bytes: usize) -> &AtomicU32 {
        self.atomic(offset_bytes)
    }

    /// Returns the double word at `offset_bytes`. See [`Self::word`].
    pub fn double_word(&self, offset_bytes: usize) -> &AtomicU64 {
        self.atomic(offset_bytes)
    }

    /// Returns the atomic at `offset_bytes`. `T` must be an atomic integer: all its bit patterns are valid, and its
    /// alignment is its size.
    fn atomic<T: Atomic>(&self, offset_bytes: usize) -> &T {
        let size = size_of::<T>();
        let ends = offset_bytes.checked_add(size);
        assert!(
            offset_bytes.is_multiple_of(size) && ends.is_some_and(|ends| ends <= self.bytes),
            "{size} bytes of the memory"
        );
        // SAFETY: the whole value is inside of the memory, aligned, and alive as long as `self`. The device also
        // accesses it by atomics.
        unsafe { &*self.host.as_ptr().add(offset_bytes).cast::<T>() }
    }
}

trait Atomic {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}

impl Drop for Pinned {
    fn drop(&mut self) {
        warn(bind(&self.ctx));
        // SAFETY: cuMemHostAlloc has allocated the memory, and nothing uses the memory any more, for the reason given
        // for a mapping.
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
    fn words_are_completely_inside_of_the_memory() {
        let ranks = crate::Communicator::simulated(&crate::Simulation::default());
        let ranks = ranks.expect("simulated GPUs");
        let memory = Pinned::allocate(ranks[0].context(), 12).expect("pinned");
        assert_eq!(memory.double_word(0).load(Ordering::Relaxed), 0);
        assert_eq!(memory.word(8).load(Ordering::Relaxed), 0);
        let beyond = || memory.double_word(8).load(Ordering::Relaxed);
        let beyond = std::panic::catch_unwind(std::panic::AssertUnwindSafe(beyond));
        assert!(beyond.is_err(), "half of it is behind the end");
    }

    #[test]
    fn sizes_are_multiples_of_the_granularity() {
        assert_eq!(rounded(0, 2 << 20), 2 << 20);
        assert_eq!(rounded(2 << 20, 2 << 20), 2 << 20);
        assert_eq!(rounded((2 << 20) + 1, 2 << 20), 4 << 20);
    }
}
