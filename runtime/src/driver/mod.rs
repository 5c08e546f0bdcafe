//! The calls of the CUDA driver API that cudarc's safe layer lacks, each behind a function that is safe to call,
//! or says what it asks of the caller. All handles are owned: they are freed on drop, and drop never panics.

mod capture;
mod choice;
mod function;
mod links;
mod memory;
mod nvml;
mod stream;

pub(crate) use capture::{Capture, Node, Uncaptured};
pub(crate) use choice::{Kind, choose, use_simulated, wants_simulated};
pub(crate) use function::{Function, encode_tensor_map};
pub use links::gpu_links;
pub(crate) use memory::{Mapping, Memory, Pinned, nic_access};
pub(crate) use stream::{
    Event, Stream, UserStream, ignore_captures_of_others, is_capturing, is_done,
};

use crate::error::Error;
use crate::simulation;
use cudarc::driver::{CudaContext, DriverError, result, sys};
use mkernel_spec::Device;
use mkernel_spec::device::Hardware;
use mkernel_topology::GpuLink;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, OnceLock};
use sys::CUdevice_attribute as Attribute;

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
    named(
        "making the context current, or an earlier call in it,",
        ctx.bind_to_thread(),
    )
}

/// Checks that the driver is there and new enough. Must come before any other call: without libcuda, cudarc panics.
fn probe() -> Result<(), Error> {
    static DRIVER: OnceLock<libloading::Library> = OnceLock::new();
    if DRIVER.get().is_none() {
        // SAFETY: libcuda's initialisers have no preconditions; cudarc loads the same library next.
        let library = unsafe { libloading::Library::new("libcuda.so.1") };
        let _ = DRIVER.set(library.map_err(|error| Error::DriverMissing(Arc::new(error)))?);
    }
    let mut found = 0;
    // SAFETY: the pointer is to a live int; the call needs no initialisation.
    check("cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&raw mut found)
    })?;
    if found < NEEDED_VERSION {
        return Err(Error::DriverTooOld {
            found,
            needed: NEEDED_VERSION,
        });
    }
    named("cuInit", result::init())
}

/// How many GPUs this process sees; of simulated ones, how many a job can have.
///
/// # Errors
/// [`Error::DriverMissing`], [`Error::DriverTooOld`], or why there are no simulated GPUs.
pub fn device_count() -> Result<usize, Error> {
    match choose()? {
        Kind::Gpu => count(),
        Kind::Simulated => Ok(simulation::MAX_RANKS),
    }
}

/// What the driver shows, which is more than a job can use where GPUs are simulated.
fn count() -> Result<usize, Error> {
    let count = named("cuDeviceGetCount", result::device::get_count())?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The primary context of GPU `ordinal`, and the figures that plans need. The driver must have been chosen.
pub(crate) fn open(ordinal: usize, kind: Kind) -> Result<(Arc<CudaContext>, Device), Error> {
    let count = count()?;
    if ordinal >= count {
        return Err(Error::NoDevice { ordinal, count });
    }
    let ctx = named("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?;
    let name = named("cuDeviceGetName", ctx.name())?;
    let capability = named("cuDeviceGetAttribute", ctx.compute_capability())?;
    if capability != (9, 0) {
        return Err(Error::UnsupportedDevice {
            ordinal,
            name,
            capability,
        });
    }
    let figure = |attribute| {
        named("cuDeviceGetAttribute", ctx.attribute(attribute))
            .map(|value| u32::try_from(value).unwrap_or(0))
    };
    let sm_count = figure(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    if kind == Kind::Simulated {
        return Ok((ctx, Device::simulated(sm_count)));
    }
    let hardware = Hardware {
        sm_count,
        sm_clock_khz: figure(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_khz: figure(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bus_bits: figure(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        nvlinks: nvml::active_links(&bus_id(ctx.cu_device())?).unwrap_or(0),
    };
    tracing::debug!(ordinal, name, ?hardware, "opened a GPU");
    let device = Device {
        name,
        smem_bytes: figure(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        memory_bytes: named("cuDeviceTotalMem_v2", ctx.total_mem())? as u64,
        l2_bytes: u64::from(figure(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        ..Device::hopper(&hardware)
    };
    Ok((ctx, device))
}

/// The GPU's address on the host, which is the same in every process.
pub(crate) fn bus_id(device: sys::CUdevice) -> Result<String, Error> {
    let mut text = [0u8; 32];
    // SAFETY: the buffer is as long as said; the driver ends what it writes with a NUL.
    let code = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast::<c_char>(), 32, device) };
    check("cuDeviceGetPCIBusId", code)?;
    Ok(CStr::from_bytes_until_nul(&text)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned())
}

/// How `ctx`'s GPU reaches the one at `bus_id`; `None` if this process does not see that one.
pub(crate) fn link_to(ctx: &CudaContext, bus_id: &str) -> Result<Option<GpuLink>, Error> {
    let Ok(text) = CString::new(bus_id) else {
        return Ok(None);
    };
    let mut peer = 0;
    // SAFETY: the pointer is to a live value, and the text ends with a NUL.
    let seen = unsafe { sys::cuDeviceGetByPCIBusId(&raw mut peer, text.as_ptr()) };
    if seen.result().is_err() {
        return Ok(None);
    }
    links::link(ctx.cu_device(), peer).map(Some)
}

/// Whether after this failure nothing runs in the context any more, and nothing ever will.
pub(crate) fn has_ended_context(error: &Error) -> bool {
    use sys::CUresult as Code;
    let Error::Cuda { source, .. } = error else {
        return false;
    };
    matches!(
        source.0,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | Code::CUDA_ERROR_CONTAINED
            | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | Code::CUDA_ERROR_DEINITIALIZED
    )
}
