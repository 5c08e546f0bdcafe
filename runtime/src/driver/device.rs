//! The GPUs that the driver has, and their properties.

use super::backend::{Backend, choose_backend};
use super::call::{check, named};
use super::function::{Function, LaunchDims};
use super::nvml;
use crate::error::{DeviceError, Error};
use crate::simulation;
use cudarc::driver::{CudaContext, result, sys};
use mkernel_spec::device::Hardware;
use mkernel_spec::{Arch, Device};
use std::ffi::{CStr, c_char};
use std::sync::Arc;
use sys::CUdevice_attribute as Attribute;

/// Returns the number of GPUs that this process sees. For simulated GPUs, this is the largest number of ranks of a job.
///
/// # Errors
/// [`Error::Device`] if the CUDA driver cannot be used, and [`Error::Simulator`] if simulated GPUs cannot.
pub fn device_count() -> Result<usize, Error> {
    match choose_backend()? {
        Backend::Gpu => count(),
        Backend::Simulated => Ok(simulation::MAX_RANKS),
    }
}

/// Returns the number of GPUs of the driver. If GPUs are simulated, the number is larger than the number of GPUs of a
/// job.
pub(super) fn count() -> Result<usize, Error> {
    let count = named("cuDeviceGetCount", result::device::get_count())?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Returns the primary context of GPU `ordinal`, and the properties that plans need. The backend must have been chosen.
pub(crate) fn open(ordinal: usize, kind: Backend) -> Result<(Arc<CudaContext>, Device), Error> {
    let count = count()?;
    if ordinal >= count {
        return Err(Error::Device(DeviceError::NoDevice { ordinal, count }));
    }
    let ctx = named("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?;
    let name = named("cuDeviceGetName", ctx.name())?;
    let capability = named("cuDeviceGetAttribute", ctx.compute_capability())?;
    let Some(arch) = Arch::of_capability(capability) else {
        return Err(Error::Device(DeviceError::UnsupportedDevice {
            ordinal,
            name,
            capability,
        }));
    };
    let figure = |attribute| {
        named("cuDeviceGetAttribute", ctx.attribute(attribute))
            .map(|value| u32::try_from(value).unwrap_or(0))
    };
    let sm_count = figure(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    if kind == Backend::Simulated {
        let device = Device {
            arch,
            ..Device::simulated(sm_count)
        };
        return Ok((ctx, device));
    }
    let smem_bytes = figure(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let hardware = Hardware {
        sm_count,
        sm_clock_khz: figure(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_khz: figure(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bus_bits: figure(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        nvlinks: nvml::active_links(&bus_id(ctx.cu_device())?).unwrap_or(0),
        resident_clusters: resident_clusters(&ctx, smem_bytes),
    };
    tracing::debug!(ordinal, name, ?hardware, "opened a GPU");
    let device = Device {
        name,
        arch,
        smem_bytes,
        memory_bytes: named("cuDeviceTotalMem_v2", ctx.total_mem())? as u64,
        l2_bytes: u64::from(figure(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        ..Device::hopper(&hardware)
    };
    Ok((ctx, device))
}

/// Returns the number of clusters that run at the same time, by their size, if each CTA has all shared memory of an SM. The
/// numbers follow from the sizes of the GPCs. Only the driver knows these sizes, and it answers only for a kernel.
fn resident_clusters(ctx: &Arc<CudaContext>, smem_bytes: u32) -> [u32; Device::CLUSTER_SIZES] {
    let count = || -> Result<_, Error> {
        let kernel = Function::load(ctx, EMPTY_KERNEL.to_bytes_with_nul(), "empty")?;
        kernel.allow_dynamic_smem(smem_bytes)?;
        let mut found = [0; Device::CLUSTER_SIZES];
        for (cluster_ctas, found) in (2..).zip(&mut found) {
            let dims = LaunchDims {
                ctas: cluster_ctas,
                cluster_ctas,
                threads: 128,
                smem_bytes,
            };
            *found = kernel.resident_clusters(dims)?;
        }
        Ok(found)
    };
    count().unwrap_or_else(|error| {
        tracing::warn!(%error, "the driver does not say how many clusters it runs, so kernels have none");
        [0; Device::CLUSTER_SIZES]
    })
}

/// PTX of a kernel that does nothing.
const EMPTY_KERNEL: &CStr =
    c".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry empty() { ret; }\n";

/// Returns the PCI bus id of the GPU, which is the same in every process.
pub(crate) fn bus_id(device: sys::CUdevice) -> Result<String, Error> {
    let mut text = [0u8; 32];
    // SAFETY: the buffer has the length that is passed. The driver ends the text with a NUL.
    let code = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast::<c_char>(), 32, device) };
    check("cuDeviceGetPCIBusId", code)?;
    Ok(CStr::from_bytes_until_nul(&text)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned())
}
