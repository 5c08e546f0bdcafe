//! Kernels: their limits and their launches.

use super::call::{driver_call, enqueue, stream, write_out};
use crate::driver::Work;
use crate::driver::host::{Host, LoadedFunction};
use crate::driver::registry::{host_of, new_handle};
use crate::driver::residency::{ctas_per_sm, sms_of};
use crate::driver::result::{Code, Result};
use crate::driver::stream::StreamOp;
use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute as Attribute, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchConfig, CUmodule, CUstream,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

/// The dynamic shared memory that a kernel may have without raising its limit.
const USUAL_SMEM_BYTES: u32 = 48 << 10;
const MAX_THREADS: u32 = 1024;
/// The largest number of CTAs of a cluster that all GPUs support without a special attribute.
const MAX_CLUSTER_CTAS: u32 = 8;

/// Ignores the name, since an image has one kernel.
pub(super) unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    _name: *const c_char,
) -> Code {
    driver_call(|| {
        let host = host_of(module as u64)?;
        let mut state = host.call()?;
        let image = state.modules.get(&(module as u64)).cloned();
        let image = image.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
        let handle = new_handle(&host);
        let made = LoadedFunction {
            image,
            module: module as u64,
            max_smem_bytes: USUAL_SMEM_BYTES,
            launches: Arc::default(),
        };
        state.functions.insert(handle, made);
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(function, handle as CUfunction) }
    })
}

/// Does nothing but check the handle, since the kernel is already loaded.
pub(super) unsafe extern "C" fn cuFuncLoad(function: CUfunction) -> Code {
    driver_call(|| with_function(function, |_, _| Ok(())))
}

pub(super) unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: Attribute,
    function: CUfunction,
) -> Code {
    driver_call(|| {
        let figure = with_function(function, |_, function| {
            Ok(match attribute {
                Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => MAX_THREADS,
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                    function.max_smem_bytes
                }
                // The other attributes, such as registers, have no meaning on simulated GPUs.
                _ => 0,
            })
        })?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(value, figure as c_int) }
    })
}

pub(super) unsafe extern "C" fn cuFuncSetAttribute(
    function: CUfunction,
    attribute: Attribute,
    value: c_int,
) -> Code {
    driver_call(|| {
        with_function(function, |host, function| match attribute {
            Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let bytes = u32::try_from(value).ok();
                let bytes = bytes.filter(|bytes| *bytes <= host.options.smem_bytes);
                function.max_smem_bytes = bytes.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
                Ok(())
            }
            _ => Err(Code::CUDA_ERROR_NOT_SUPPORTED),
        })
    })
}

pub(super) unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    ctas: *mut c_int,
    function: CUfunction,
    threads: c_int,
    smem_bytes: usize,
) -> Code {
    driver_call(|| {
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0);
        let threads = threads.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let most = with_function(function, |_, function| {
            let smem_bytes = u32::try_from(smem_bytes).unwrap_or(u32::MAX);
            let fits = threads <= MAX_THREADS && smem_bytes <= function.max_smem_bytes;
            Ok(if fits {
                ctas_per_sm(threads, smem_bytes)
            } else {
                0
            })
        })?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(ctas, most as c_int) }
    })
}

/// Clusters may have any SMs of a simulated GPU.
pub(super) unsafe extern "C" fn cuOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> Code {
    driver_call(|| {
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        let grid = unsafe { launch_dims(config) }?;
        let most = with_function(function, |host, function| {
            let [threads, ..] = grid.threads;
            let fits = threads <= MAX_THREADS && grid.smem_bytes <= function.max_smem_bytes;
            let ctas = host.options.sm_count * ctas_per_sm(threads.max(1), grid.smem_bytes);
            Ok(if fits { ctas / grid.cluster_ctas } else { 0 })
        })?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(clusters, most as c_int) }
    })
}

pub(super) unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    smem_bytes: c_uint,
    on: CUstream,
    params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    let grid = LaunchDims {
        ctas: [grid_x, grid_y, grid_z],
        threads: [block_x, block_y, block_z],
        smem_bytes,
        cluster_ctas: 1,
        is_cooperative: false,
        overlaps: false,
    };
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { launch(function, &grid, on, params) })
}

/// Uses the attributes for clusters, cooperative launches and overlaps with the preceding kernel, and ignores all other
/// attributes.
pub(super) unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    function: CUfunction,
    params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    driver_call(|| {
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        let grid = unsafe { launch_dims(config) }?;
        // SAFETY: it has been checked.
        let on = unsafe { (*config).hStream };
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { launch(function, &grid, on, params) }
    })
}

/// Reads the dimensions of a launch.
///
/// # Safety
/// `config` must be null, or point to a configuration with `numAttrs` attributes.
unsafe fn launch_dims(config: *const CUlaunchConfig) -> Result<LaunchDims> {
    // SAFETY: guaranteed by the caller.
    let config = unsafe { config.as_ref() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
    let attributes = match config.numAttrs {
        0 => &[],
        // SAFETY: the configuration has `numAttrs` attributes.
        count => unsafe { std::slice::from_raw_parts(config.attrs, count as usize) },
    };
    let mut grid = LaunchDims {
        ctas: [config.gridDimX, config.gridDimY, config.gridDimZ],
        threads: [config.blockDimX, config.blockDimY, config.blockDimZ],
        smem_bytes: config.sharedMemBytes,
        cluster_ctas: 1,
        is_cooperative: attributes.iter().any(is_cooperative),
        overlaps: attributes.iter().any(overlaps),
    };
    let clusters = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    for attribute in attributes.iter().filter(|of| of.id == clusters) {
        // SAFETY: the ID of the attribute selects this member of the union.
        let size = unsafe { attribute.value.clusterDim };
        let fits = (size.y, size.z) == (1, 1)
            && (1..=MAX_CLUSTER_CTAS).contains(&size.x)
            && config.gridDimX.is_multiple_of(size.x);
        if !fits {
            return Err(Code::CUDA_ERROR_INVALID_CLUSTER_SIZE);
        }
        grid.cluster_ctas = size.x;
    }
    Ok(grid)
}

/// Returns whether an attribute makes a launch cooperative.
fn is_cooperative(attribute: &CUlaunchAttribute) -> bool {
    // SAFETY: the ID of the attribute selects this member of the union.
    attribute.id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        && unsafe { attribute.value.cooperative } != 0
}

/// Returns whether an attribute lets a kernel start while the preceding kernel still runs.
fn overlaps(attribute: &CUlaunchAttribute) -> bool {
    let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    // SAFETY: the ID of the attribute selects this member of the union.
    attribute.id == id && unsafe { attribute.value.programmaticStreamSerializationAllowed } != 0
}

/// The dimensions of a launch.
struct LaunchDims {
    ctas: [c_uint; 3],
    threads: [c_uint; 3],
    smem_bytes: c_uint,
    cluster_ctas: c_uint,
    /// Whether all CTAs must be resident at the same time.
    is_cooperative: bool,
    /// Whether the kernel may start while the preceding kernel still runs.
    overlaps: bool,
}

/// Checks and enqueues a launch.
///
/// # Safety
/// `params` must point to a pointer to the kernel's parameter.
unsafe fn launch(
    function: CUfunction,
    grid: &LaunchDims,
    on: CUstream,
    params: *mut *mut c_void,
) -> Result<()> {
    let (gpu, id) = stream(on)?;
    let ([ctas, grid_y, grid_z], [threads, block_y, block_z]) = (grid.ctas, grid.threads);
    let (image, launches) = with_function(function, |_, function| {
        let fits =
            grid.smem_bytes <= function.max_smem_bytes && (1..=MAX_THREADS).contains(&threads);
        let is_flat = [grid_y, grid_z, block_y, block_z] == [1; 4] && ctas > 0;
        match fits && is_flat {
            true => Ok((function.image.clone(), function.launches.clone())),
            false => Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
    })?;
    // SAFETY: the caller passes null or a pointer for each parameter. Kernels have one parameter.
    let param = unsafe { params.as_ref() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
    if param.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller guarantees that it points to the struct that the kernel declares.
    let args = unsafe { std::slice::from_raw_parts(param.cast::<u8>(), image.args_bytes()) };
    let work = Work::Kernel {
        args: args.to_vec(),
        image,
        ctas,
        cluster_ctas: grid.cluster_ctas,
        threads,
        smem_bytes: grid.smem_bytes,
        overlaps: grid.overlaps,
    };
    if grid.is_cooperative && sms_of(&work) > gpu.host.options.sm_count {
        return Err(Code::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    enqueue(&gpu, id, StreamOp::Kernel(work, launches)).map(drop)
}

/// Calls `body` with the function that has a handle.
fn with_function<T>(
    handle: CUfunction,
    body: impl FnOnce(&Arc<Host>, &mut LoadedFunction) -> Result<T>,
) -> Result<T> {
    let host = host_of(handle as u64)?;
    let mut state = host.call()?;
    let function = state.functions.get_mut(&(handle as u64));
    body(&host, function.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?)
}
