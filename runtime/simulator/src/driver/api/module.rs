//! Modules: the images of kernels that the program has loaded.

use super::call::{current_gpu, driver_call, write_out};
use crate::driver::Image;
use crate::driver::registry::{host_of, new_handle};
use crate::driver::result::{Code, Result};
use cudarc::driver::sys::CUmodule;
use std::ffi::c_void;

pub(super) unsafe extern "C" fn cuModuleLoadData(
    module: *mut CUmodule,
    image: *const c_void,
) -> Code {
    driver_call(|| {
        let gpu = current_gpu()?;
        // SAFETY: the caller passes null, a text that ends with a NUL, or a whole image.
        let bytes = unsafe { elf_bytes(image.cast()) }?;
        let image = Image::load(bytes).map_err(|reason| {
            tracing::error!(reason, "a kernel cannot be loaded into simulated GPUs");
            Code::CUDA_ERROR_INVALID_IMAGE
        })?;
        let handle = new_handle(&gpu.host);
        gpu.host.call()?.modules.insert(handle, image);
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(module, handle as CUmodule) }
    })
}

/// Returns the bytes of a shared object for this machine. Only its start is known. It ends with the last of its
/// sections, or with the table of sections.
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
    // SAFETY: the loop ends at the first byte that differs, so it does not read past the NUL of a text.
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
        // Machine code for GPUs is ELF as well.
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
    // SAFETY: the image extends to the end of its last section.
    Ok(unsafe { std::slice::from_raw_parts(start, end as usize) })
}

/// Reads a little-endian number of `size` bytes, at most 8.
fn word(bytes: &[u8], at: usize, size: usize) -> u64 {
    let digits = bytes[at..at + size].iter().rev();
    digits.fold(0, |value, byte| value << 8 | u64::from(*byte))
}

pub(super) unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> Code {
    driver_call(|| {
        let host = host_of(module as u64)?;
        let mut state = host.call()?;
        state
            .functions
            .retain(|_, function| function.module != module as u64);
        let removed = state.modules.remove(&(module as u64));
        removed.map(drop).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    })
}
