//! Kernels: loading, limits, launch.

use super::device::SMEM_PER_SM_BYTES;
use super::{answer, enqueue, here, put, stream};
use crate::driver::host::{Function, Host};
use crate::driver::queue::Step;
use crate::driver::registry::{host_of, new_handle};
use crate::driver::{Code, Image, Result, Work};
use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute as Attribute, CUlaunchAttributeID, CUlaunchConfig, CUmodule,
    CUstream,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

/// Dynamic shared memory that needs no permission.
const USUAL_SMEM_BYTES: u32 = 48 << 10;
/// Shared memory of an SM that each of its CTAs takes for the system.
const SYSTEM_SMEM_BYTES: u32 = 1024;
const MAX_THREADS: u32 = 1024;
/// Of a cluster on every GPU; more needs a permission.
const MAX_CLUSTER_CTAS: u32 = 8;
const THREADS_PER_SM: u32 = 2048;

pub(super) unsafe extern "C" fn cuModuleLoadData(
    module: *mut CUmodule,
    image: *const c_void,
) -> Code {
    answer(|| {
        let here = here()?;
        // SAFETY: by the caller, it is an image, which says its own size.
        let bytes = unsafe { elf_bytes(image.cast()) }?;
        let image = Image::load(bytes).map_err(|reason| {
            tracing::error!(reason, "a kernel cannot be loaded into simulated GPUs");
            Code::CUDA_ERROR_INVALID_IMAGE
        })?;
        let handle = new_handle(&here.host);
        here.host.call()?.modules.insert(handle, image);
        // SAFETY: by the caller.
        unsafe { put(module, handle as CUmodule) }
    })
}

/// The bytes of a shared object of this machine, of which only the start is known: it ends with the last of its
/// sections, or with the table of them.
///
/// # Safety
/// `start` must be null, text that ends with a NUL, or a whole ELF image.
unsafe fn elf_bytes<'a>(start: *const u8) -> Result<&'a [u8]> {
    const MAGIC: [u8; 5] = *b"\x7fELF\x02";
    const HEADER_BYTES: usize = 64;
    const SECTION_BYTES: usize = 64;
    const NO_BITS: u64 = 8;
    let machine: u64 = if cfg!(target_arch = "aarch64") {
        183
    } else {
        62
    };
    if start.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: short-circuits at the first byte that differs, so it does not read past the NUL of a text.
    let is_elf = (0..)
        .zip(MAGIC)
        .all(|(i, byte)| unsafe { *start.add(i) } == byte);
    if !is_elf {
        return Err(Code::CUDA_ERROR_INVALID_IMAGE);
    }
    // SAFETY: an ELF image has its header.
    let header = unsafe { std::slice::from_raw_parts(start, HEADER_BYTES) };
    let (table, size, count) = (
        word(header, 40, 8),
        word(header, 58, 2),
        word(header, 60, 2),
    );
    if word(header, 18, 2) != machine || size != SECTION_BYTES as u64 || count == 0 {
        // Machine code of GPUs is ELF as well.
        return Err(Code::CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    let mut end = table + size * count;
    // SAFETY: an ELF image has its table of sections.
    let sections =
        unsafe { std::slice::from_raw_parts(start.add(table as usize), (size * count) as usize) };
    for section in sections.chunks_exact(SECTION_BYTES) {
        if word(section, 4, 4) != NO_BITS {
            end = end.max(word(section, 24, 8) + word(section, 32, 8));
        }
    }
    // SAFETY: up to its last section, the image is there.
    Ok(unsafe { std::slice::from_raw_parts(start, end as usize) })
}

/// A little-endian number of `size` bytes, 8 at most.
fn word(bytes: &[u8], at: usize, size: usize) -> u64 {
    let digits = bytes[at..at + size].iter().rev();
    digits.fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// An image holds one kernel, whatever its name.
pub(super) unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    _name: *const c_char,
) -> Code {
    answer(|| {
        let host = host_of(module as u64)?;
        let mut state = host.call()?;
        let image = state.modules.get(&(module as u64)).cloned();
        let image = image.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
        let handle = new_handle(&host);
        let made = Function {
            image,
            module: module as u64,
            max_smem_bytes: USUAL_SMEM_BYTES,
        };
        state.functions.insert(handle, made);
        // SAFETY: by the caller.
        unsafe { put(function, handle as CUfunction) }
    })
}

pub(super) unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> Code {
    answer(|| {
        let host = host_of(module as u64)?;
        let mut state = host.call()?;
        state
            .functions
            .retain(|_, function| function.module != module as u64);
        let removed = state.modules.remove(&(module as u64));
        removed.map(drop).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    })
}

/// Everything is loaded already.
pub(super) unsafe extern "C" fn cuFuncLoad(function: CUfunction) -> Code {
    answer(|| with_function(function, |_, _| Ok(())))
}

pub(super) unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: Attribute,
    function: CUfunction,
) -> Code {
    answer(|| {
        let figure = with_function(function, |_, function| {
            Ok(match attribute {
                Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => MAX_THREADS,
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                    function.max_smem_bytes
                }
                // Registers are those of this machine's compiler, and nobody counts them.
                _ => 0,
            })
        })?;
        // SAFETY: by the caller.
        unsafe { put(value, figure as c_int) }
    })
}

pub(super) unsafe extern "C" fn cuFuncSetAttribute(
    function: CUfunction,
    attribute: Attribute,
    value: c_int,
) -> Code {
    answer(|| {
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
    answer(|| {
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0);
        let threads = threads.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let most = with_function(function, |_, function| {
            let smem_bytes = u32::try_from(smem_bytes).unwrap_or(u32::MAX);
            let fits = threads <= MAX_THREADS && smem_bytes <= function.max_smem_bytes;
            let by_smem = SMEM_PER_SM_BYTES / smem_bytes.saturating_add(SYSTEM_SMEM_BYTES);
            Ok(if fits {
                by_smem.min(THREADS_PER_SM / threads)
            } else {
                0
            })
        })?;
        // SAFETY: by the caller.
        unsafe { put(ctas, most as c_int) }
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
    let grid = Grid {
        ctas: [grid_x, grid_y, grid_z],
        threads: [block_x, block_y, block_z],
        smem_bytes,
        cluster_ctas: 1,
    };
    // SAFETY: by the caller.
    answer(|| unsafe { launch(function, &grid, on, params) })
}

/// Of the attributes, that which makes clusters counts; others say nothing to simulated GPUs.
pub(super) unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    function: CUfunction,
    params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    answer(|| {
        // SAFETY: by the caller, a config with as many attributes as it says.
        let config = unsafe { config.as_ref() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let attributes = match config.numAttrs {
            0 => &[],
            // SAFETY: as above.
            count => unsafe { std::slice::from_raw_parts(config.attrs, count as usize) },
        };
        let mut grid = Grid {
            ctas: [config.gridDimX, config.gridDimY, config.gridDimZ],
            threads: [config.blockDimX, config.blockDimY, config.blockDimZ],
            smem_bytes: config.sharedMemBytes,
            cluster_ctas: 1,
        };
        let clusters = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        for attribute in attributes.iter().filter(|of| of.id == clusters) {
            // SAFETY: it is of this kind.
            let size = unsafe { attribute.value.clusterDim };
            let fits = (size.y, size.z) == (1, 1)
                && (1..=MAX_CLUSTER_CTAS).contains(&size.x)
                && config.gridDimX.is_multiple_of(size.x);
            if !fits {
                return Err(Code::CUDA_ERROR_INVALID_CLUSTER_SIZE);
            }
            grid.cluster_ctas = size.x;
        }
        // SAFETY: by the caller.
        unsafe { launch(function, &grid, config.hStream, params) }
    })
}

struct Grid {
    ctas: [c_uint; 3],
    threads: [c_uint; 3],
    smem_bytes: c_uint,
    cluster_ctas: c_uint,
}

/// # Safety
/// `params` must point to a pointer to the kernel's parameter.
unsafe fn launch(
    function: CUfunction,
    grid: &Grid,
    on: CUstream,
    params: *mut *mut c_void,
) -> Result<()> {
    let (here, id) = stream(on)?;
    let ([ctas, grid_y, grid_z], [threads, block_y, block_z]) = (grid.ctas, grid.threads);
    let image = with_function(function, |_, function| {
        let fits =
            grid.smem_bytes <= function.max_smem_bytes && (1..=MAX_THREADS).contains(&threads);
        let is_flat = [grid_y, grid_z, block_y, block_z] == [1; 4] && ctas > 0;
        match fits && is_flat {
            true => Ok(function.image.clone()),
            false => Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
    })?;
    // SAFETY: by the caller, there is a pointer for each parameter, of which kernels have one.
    let param = unsafe { params.as_ref() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
    if param.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: by the caller, it points to the struct that the kernel declares.
    let args = unsafe { std::slice::from_raw_parts(param.cast::<u8>(), image.args_bytes()) };
    let work = Work::Kernel {
        args: args.to_vec(),
        image,
        ctas,
        cluster_ctas: grid.cluster_ctas,
        threads,
        smem_bytes: grid.smem_bytes,
    };
    enqueue(&here, id, Step::Work(work)).map(drop)
}

fn with_function<T>(
    handle: CUfunction,
    body: impl FnOnce(&Arc<Host>, &mut Function) -> Result<T>,
) -> Result<T> {
    let host = host_of(handle as u64)?;
    let mut state = host.call()?;
    let function = state.functions.get_mut(&(handle as u64));
    body(&host, function.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?)
}
