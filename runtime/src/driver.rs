//! The calls of the CUDA driver API that cudarc's safe layer lacks, each behind a function that is safe to call,
//! or says what it asks of the caller. All handles are owned: they are freed on drop, and drop never panics.

use crate::args::TensorMap;
use crate::error::Error;
use cudarc::driver::{CudaContext, DriverError, result, sys};
use mkernel_spec::Device;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use sys::CUdevice_attribute as Attribute;
use sys::CUfunction_attribute as FunctionAttribute;

/// CUDA 13.0: what cudarc's bindings and the compiled kernels are made for.
const NEEDED_VERSION: i32 = 13_000;

/// Gives `result` the name of its call.
pub(crate) fn named<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, Error> {
    result.map_err(|source| Error::Cuda { call, source })
}

fn check(call: &'static str, code: sys::CUresult) -> Result<(), Error> {
    named(call, code.result())
}

/// Records a failure of a call in drop, where nothing else can be done.
fn warn(result: Result<(), Error>) {
    if let Err(error) = result {
        tracing::warn!(error = crate::error::with_causes(&error), "while freeing");
    }
}

/// Makes the context current on this thread.
pub(crate) fn bind(ctx: &CudaContext) -> Result<(), Error> {
    named("making the context current, or an earlier call in it,", ctx.bind_to_thread())
}

/// Checks that the driver is there and new enough. Must come before any other call: without libcuda, cudarc panics.
pub(crate) fn probe() -> Result<(), Error> {
    static DRIVER: OnceLock<libloading::Library> = OnceLock::new();
    if DRIVER.get().is_none() {
        // SAFETY: libcuda's initialisers have no preconditions; cudarc loads the same library next.
        let library = unsafe { libloading::Library::new("libcuda.so.1") };
        let _ = DRIVER.set(library.map_err(|error| Error::DriverMissing(Arc::new(error)))?);
    }
    let mut found = 0;
    // SAFETY: the pointer is to a live int; the call needs no initialisation.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut found) })?;
    if found < NEEDED_VERSION {
        return Err(Error::DriverTooOld { found, needed: NEEDED_VERSION });
    }
    named("cuInit", result::init())
}

/// GPUs that this process sees. The driver must have been probed.
pub(crate) fn device_count() -> Result<usize, Error> {
    let count = named("cuDeviceGetCount", result::device::get_count())?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The primary context of GPU `ordinal`, and the figures that plans need. The driver must have been probed.
pub(crate) fn open(ordinal: usize) -> Result<(Arc<CudaContext>, Device), Error> {
    let count = device_count()?;
    if ordinal >= count {
        return Err(Error::NoDevice { ordinal, count });
    }
    let ctx = named("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?;
    let name = named("cuDeviceGetName", ctx.name())?;
    let capability = named("cuDeviceGetAttribute", ctx.compute_capability())?;
    if capability != (9, 0) {
        return Err(Error::UnsupportedDevice { ordinal, name, capability });
    }
    let figure = |attribute| {
        named("cuDeviceGetAttribute", ctx.attribute(attribute)).map(|value| u32::try_from(value).unwrap_or(0))
    };
    let device = Device {
        name,
        sm_count: figure(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        smem_bytes: figure(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        l2_bytes: u64::from(figure(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        ..Device::h200()
    };
    Ok((ctx, device))
}

/// The GPU's address on the host, which is the same in every process.
pub(crate) fn bus_id(ctx: &CudaContext) -> Result<String, Error> {
    let mut text = [0u8; 32];
    // SAFETY: the buffer is as long as said; the driver ends what it writes with a NUL.
    let code = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast::<c_char>(), 32, ctx.cu_device()) };
    check("cuDeviceGetPCIBusId", code)?;
    Ok(CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().into_owned())
}

/// Whether `ctx`'s GPU can access the one at `bus_id`; `None` if this process does not see that one.
pub(crate) fn can_access_peer(ctx: &CudaContext, bus_id: &str) -> Result<Option<bool>, Error> {
    let Ok(text) = CString::new(bus_id) else { return Ok(None) };
    let (mut peer, mut can) = (0, 0);
    // SAFETY: both pointers are to live values, the text ends with a NUL.
    if unsafe { sys::cuDeviceGetByPCIBusId(&raw mut peer, text.as_ptr()) }.result().is_err() {
        return Ok(None);
    }
    // SAFETY: the pointer is to a live int.
    check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, ctx.cu_device(), peer) })?;
    Ok(Some(can != 0))
}

/// Waits for all work of the context.
pub(crate) fn synchronize(ctx: &CudaContext) -> Result<(), Error> {
    named("cuCtxSynchronize", ctx.synchronize())
}

/// Device memory that other processes can map.
pub(crate) struct Memory {
    handle: sys::CUmemGenericAllocationHandle,
    bytes: usize,
    ctx: Arc<CudaContext>,
}

impl Memory {
    /// At least `bytes` on the context's GPU.
    pub fn allocate(ctx: &Arc<CudaContext>, bytes: u64) -> Result<Self, Error> {
        bind(ctx)?;
        // SAFETY: the struct is plain C data, for which all zeros is a value.
        let mut request: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        request.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        request.requestedHandleTypes = HANDLE_TYPE;
        request.location = location(ctx);
        let mut granularity = 0;
        let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: the pointers are to live values.
        let code = unsafe { sys::cuMemGetAllocationGranularity(&raw mut granularity, &raw const request, option) };
        check("cuMemGetAllocationGranularity", code)?;
        let bytes = rounded(bytes, granularity);
        let mut handle = 0;
        // SAFETY: the pointers are to live values, the size is a multiple of the granularity.
        check("cuMemCreate", unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const request, 0) })?;
        Ok(Self { handle, bytes, ctx: ctx.clone() })
    }

    /// Memory that another rank allocated with the same size.
    pub fn import(ctx: &Arc<CudaContext>, fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Error> {
        bind(ctx)?;
        let mut handle = 0;
        // The driver takes the descriptor itself where a pointer is declared.
        let os_handle = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the pointer is to a live handle, the descriptor is open.
        let code = unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, os_handle, HANDLE_TYPE) };
        check("cuMemImportFromShareableHandle", code)?;
        Ok(Self { handle, bytes, ctx: ctx.clone() })
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
        warn(check("cuMemRelease", unsafe { sys::cuMemRelease(self.handle) }));
    }
}

const HANDLE_TYPE: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn location(ctx: &CudaContext) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ctx.cu_device() }
}

/// `bytes`, at least 1, rounded up to a multiple of `granularity`.
fn rounded(bytes: u64, granularity: usize) -> usize {
    usize::try_from(bytes.max(1)).unwrap_or(usize::MAX / 2).next_multiple_of(granularity.max(1))
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
        let mut mapping = Self { address, mapped: false, memory };
        let bytes = mapping.memory.bytes;
        // SAFETY: the range was reserved above and is not mapped yet.
        check("cuMemMap", unsafe { sys::cuMemMap(address, bytes, 0, mapping.memory.handle, 0) })?;
        mapping.mapped = true;
        let access = sys::CUmemAccessDesc {
            location: location(&mapping.memory.ctx),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range is mapped as a whole; one descriptor is given.
        check("cuMemSetAccess", unsafe { sys::cuMemSetAccess(address, bytes, &raw const access, 1) })?;
        Ok(mapping)
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        warn(bind(&self.memory.ctx));
        if self.mapped {
            // SAFETY: the range is mapped; its owner has waited for the work that uses it.
            warn(check("cuMemUnmap", unsafe { sys::cuMemUnmap(self.address, self.memory.bytes) }));
        }
        // SAFETY: the range was reserved by us and is not mapped any more.
        warn(check("cuMemAddressFree", unsafe { sys::cuMemAddressFree(self.address, self.memory.bytes) }));
    }
}

/// A page of pinned host memory that the GPU reads and writes too; zero at first.
pub(crate) struct PinnedPage {
    host: NonNull<u8>,
    device_address: u64,
    ctx: Arc<CudaContext>,
}

// SAFETY: the page is only accessed through atomics, and freed once.
unsafe impl Send for PinnedPage {}
// SAFETY: as above.
unsafe impl Sync for PinnedPage {}

impl PinnedPage {
    pub const BYTES: usize = 4096;

    pub fn allocate(ctx: &Arc<CudaContext>) -> Result<Self, Error> {
        bind(ctx)?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current.
        let raw = named("cuMemHostAlloc", unsafe { result::malloc_host(Self::BYTES, flags) })?;
        let Some(host) = NonNull::new(raw.cast::<u8>()) else {
            return named("cuMemHostAlloc", Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)));
        };
        // SAFETY: the page is as long as this, and nobody else has it yet.
        unsafe { host.as_ptr().write_bytes(0, Self::BYTES) };
        let mut page = Self { host, device_address: 0, ctx: ctx.clone() };
        // SAFETY: the pointers are to a live address and to the start of a mapped allocation.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut page.device_address, raw, 0) };
        check("cuMemHostGetDevicePointer", code)?;
        Ok(page)
    }

    /// Its address on the device.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// The word at `offset_bytes`.
    ///
    /// # Panics
    /// If it lies outside of the page or is misaligned, which no caller in this crate asks for.
    pub fn word(&self, offset_bytes: usize) -> &AtomicU32 {
        assert!(offset_bytes.is_multiple_of(4) && offset_bytes < Self::BYTES, "a word of the page");
        // SAFETY: inside the page, aligned, and alive as long as `self`; the device accesses it with atomics too.
        unsafe { &*self.host.as_ptr().add(offset_bytes).cast::<AtomicU32>() }
    }

    /// The double word at `offset_bytes`; see [`Self::word`].
    pub fn double_word(&self, offset_bytes: usize) -> &AtomicU64 {
        assert!(offset_bytes.is_multiple_of(8) && offset_bytes < Self::BYTES, "a double word of the page");
        // SAFETY: as in `word`.
        unsafe { &*self.host.as_ptr().add(offset_bytes).cast::<AtomicU64>() }
    }
}

impl Drop for PinnedPage {
    fn drop(&mut self) {
        warn(bind(&self.ctx));
        // SAFETY: allocated by cuMemHostAlloc; its owner has waited for the kernels that use it.
        warn(named("cuMemFreeHost", unsafe { result::free_host(self.host.as_ptr().cast()) }));
    }
}

/// A stream of our own: no other stream waits for it, and it goes before others where there is a choice.
pub(crate) struct Stream {
    raw: sys::CUstream,
    ctx: Arc<CudaContext>,
}

// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    // Not `CudaContext::new_stream`: that would switch the user's slices to event tracking.
    pub fn new(ctx: &Arc<CudaContext>) -> Result<Self, Error> {
        bind(ctx)?;
        let (_, greatest) = named("cuCtxGetStreamPriorityRange", result::stream::get_priority_range())?;
        let kind = result::stream::StreamKind::NonBlocking;
        let raw = named("cuStreamCreateWithPriority", result::stream::create_with_priority(kind, greatest))?;
        Ok(Self { raw, ctx: ctx.clone() })
    }

    /// Whether all its work is done.
    pub fn is_done(&self) -> Result<bool, Error> {
        // SAFETY: the stream is alive.
        unsafe { is_done(self.raw) }
    }

    /// Sets `bytes` at `to` to zero.
    ///
    /// # Safety
    /// The range must be mapped until the stream is done.
    pub unsafe fn zero(&self, to: u64, bytes: usize) -> Result<(), Error> {
        // SAFETY: by the caller.
        named("cuMemsetD8Async", unsafe { result::memset_d8_async(to, 0, bytes, self.raw) })
    }

    /// Copies between any two places that the GPU can access.
    ///
    /// # Safety
    /// Both ranges must be mapped until the stream is done, and nobody may write them meanwhile.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), Error> {
        // SAFETY: by the caller.
        check("cuMemcpyAsync", unsafe { sys::cuMemcpyAsync(to, from, bytes, self.raw) })
    }

    /// Copies `rows` rows of `row_bytes`; the source's rows are `from_pitch_bytes` apart, the target's are dense.
    ///
    /// # Safety
    /// As for [`Self::copy`].
    pub unsafe fn copy_rows(
        &self,
        to: u64,
        from: u64,
        from_pitch_bytes: usize,
        row_bytes: usize,
        rows: usize,
    ) -> Result<(), Error> {
        let request = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from,
            srcArray: null_mut(),
            srcPitch: from_pitch_bytes,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: null_mut(),
            dstDevice: to,
            dstArray: null_mut(),
            dstPitch: row_bytes,
            WidthInBytes: row_bytes,
            Height: rows,
        };
        // SAFETY: by the caller.
        check("cuMemcpy2DAsync", unsafe { sys::cuMemcpy2DAsync_v2(&raw const request, self.raw) })
    }

    /// Writes a word after all earlier work of the stream.
    ///
    /// # Safety
    /// The word must be mapped until the stream is done.
    pub unsafe fn write_word(&self, to: u64, value: u32) -> Result<(), Error> {
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: by the caller.
        check("cuStreamWriteValue32", unsafe { sys::cuStreamWriteValue32_v2(self.raw, to, value, flags) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        warn(bind(&self.ctx));
        // SAFETY: ours; the driver finishes its work before it frees it.
        warn(named("cuStreamDestroy", unsafe { result::stream::destroy(self.raw) }));
    }
}

/// Lets the calling thread use streams while others capture.
pub(crate) fn ignore_captures_of_others() -> Result<(), Error> {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the pointer is to a live mode; only this thread is affected.
    check("cuThreadExchangeStreamCaptureMode", unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) })
}

/// Whether all work of a stream is done.
///
/// # Safety
/// `stream` must be alive.
pub(crate) unsafe fn is_done(stream: sys::CUstream) -> Result<bool, Error> {
    // SAFETY: by the caller.
    match unsafe { sys::cuStreamQuery(stream) } {
        sys::CUresult::CUDA_SUCCESS => Ok(true),
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => check("cuStreamQuery", code).map(|()| true),
    }
}

/// Whether a stream is being captured into a graph.
///
/// # Safety
/// `stream` must be alive.
pub(crate) unsafe fn is_capturing(stream: sys::CUstream) -> Result<bool, Error> {
    // SAFETY: by the caller.
    let status = named("cuStreamIsCapturing", unsafe { result::stream::is_capturing(stream) })?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// A point in a stream for which another stream can wait.
pub(crate) struct Event(cudarc::driver::CudaEvent);

impl Event {
    pub fn new(ctx: &Arc<CudaContext>) -> Result<Self, Error> {
        named("cuEventCreate", ctx.new_event(None)).map(Self)
    }

    /// Work that comes to `later` from now on waits for what is in `earlier` now.
    ///
    /// # Safety
    /// Both streams must be alive and of the event's context.
    pub unsafe fn order(&self, earlier: sys::CUstream, later: sys::CUstream) -> Result<(), Error> {
        let event = self.0.cu_event();
        // SAFETY: by the caller.
        named("cuEventRecord", unsafe { result::event::record(event, earlier) })?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: by the caller.
        named("cuStreamWaitEvent", unsafe { result::stream::wait_event(later, event, flags) })
    }
}

/// A compiled kernel in the context.
pub(crate) struct Function {
    raw: sys::CUfunction,
    module: sys::CUmodule,
    ctx: Arc<CudaContext>,
}

// SAFETY: the driver's modules and functions may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// The kernel `name` of a CUBIN.
    pub fn load(ctx: &Arc<CudaContext>, cubin: &[u8], name: &str) -> Result<Self, Error> {
        bind(ctx)?;
        let symbol = CString::new(name).unwrap_or_default();
        // SAFETY: an ELF image says its own size, and the store has checked it against its digest.
        let module = named("cuModuleLoadData", unsafe { result::module::load_data(cubin.as_ptr().cast()) })?;
        let mut function = Self { raw: null_mut(), module, ctx: ctx.clone() };
        // SAFETY: the module is loaded.
        function.raw = named("cuModuleGetFunction", unsafe { result::module::get_function(module, symbol) })?;
        Ok(function)
    }

    pub fn allow_dynamic_smem(&self, bytes: u32) -> Result<(), Error> {
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function is loaded.
        named("cuFuncSetAttribute", unsafe { result::function::set_function_attribute(self.raw, attribute, bytes) })
    }

    pub fn registers(&self) -> Result<u32, Error> {
        self.attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    pub fn static_smem_bytes(&self) -> Result<u32, Error> {
        self.attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    }

    fn attribute(&self, attribute: FunctionAttribute) -> Result<u32, Error> {
        // SAFETY: the function is loaded.
        let value = unsafe { result::function::get_function_attribute(self.raw, attribute) };
        named("cuFuncGetAttribute", value).map(|value| u32::try_from(value).unwrap_or(0))
    }

    /// CTAs of this shape that an SM can hold at once.
    pub fn ctas_per_sm(&self, threads: u32, dynamic_smem_bytes: u32) -> Result<u32, Error> {
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the function is loaded.
        let count = unsafe {
            result::function::max_active_block_per_multiprocessor(self.raw, threads, dynamic_smem_bytes as usize)
        };
        named("cuOccupancyMaxActiveBlocksPerMultiprocessor", count).map(|count| u32::try_from(count).unwrap_or(0))
    }

    /// Enqueues the kernel with one struct parameter, which is copied before this returns.
    ///
    /// # Safety
    /// `args` must be the struct that the kernel declares, and what it points to must stay until the kernel is done;
    /// `stream` must be alive and of this context, which must be current.
    pub unsafe fn launch(
        &self,
        stream: sys::CUstream,
        (ctas, threads, smem_bytes): (u32, u32, u32),
        args: &mut [u8],
    ) -> Result<(), Error> {
        let mut params = [args.as_mut_ptr().cast::<c_void>()];
        // SAFETY: by the caller; the driver reads `args`, and does not write it.
        let launched = unsafe {
            result::launch_kernel(self.raw, (ctas, 1, 1), (threads, 1, 1), smem_bytes, stream, &mut params)
        };
        named("cuLaunchKernel", launched)
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        warn(bind(&self.ctx));
        // SAFETY: ours; its owner has waited for the kernel.
        warn(named("cuModuleUnload", unsafe { result::module::unload(self.module) }));
    }
}

/// The 128 bytes that TMA instructions take.
pub(crate) fn encode_tensor_map(map: &TensorMap) -> Result<[u8; 128], Error> {
    let rank = map.dims.len();
    let consistent = (1..=5).contains(&rank) && map.strides_bytes.len() + 1 == rank && map.box_elems.len() == rank;
    if !consistent {
        return named("cuTensorMapEncodeTiled", Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)));
    }
    let mut encoded = sys::CUtensorMap { opaque: [0; 16] };
    let element_strides = [1u32; 5];
    // SAFETY: the arrays are as long as `rank` says (strides: one fewer), as checked above; `encoded` is aligned by its type.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut encoded,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            rank as u32,
            map.address as *mut c_void,
            map.dims.as_ptr(),
            map.strides_bytes.as_ptr(),
            map.box_elems.as_ptr(),
            element_strides.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check("cuTensorMapEncodeTiled", code)?;
    let mut bytes = [0; 128];
    for (to, word) in bytes.chunks_exact_mut(8).zip(encoded.opaque) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_granules() {
        assert_eq!(rounded(0, 2 << 20), 2 << 20);
        assert_eq!(rounded(2 << 20, 2 << 20), 2 << 20);
        assert_eq!(rounded((2 << 20) + 1, 2 << 20), 4 << 20);
    }
}
