//! Virtual memory management: physical memory, reserved addresses and mappings, which symmetric memory uses.

use super::call::{current_gpu, driver_call, write_out};
use crate::driver::address_space::GRANULARITY_BYTES;
use crate::driver::registry::device;
use crate::driver::result::{Code, Result};
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};

pub(super) unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    request: *const CUmemAllocationProp,
    _option: CUmemAllocationGranularity_flags,
) -> Code {
    driver_call(|| {
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        let request = unsafe { request.as_ref() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        device_at(&request.location)?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(granularity, GRANULARITY_BYTES as usize) }
    })
}

pub(super) unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    request: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> Code {
    driver_call(|| {
        let gpu = current_gpu()?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        let request = unsafe { request.as_ref() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let is_pinned = request.type_ == CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        let bytes = bytes as u64;
        if !is_pinned || flags != 0 || !bytes.is_multiple_of(GRANULARITY_BYTES) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let device = gpu.device_at(&request.location)?;
        gpu.host.lock().ensure_works(device)?;
        let created = gpu
            .host
            .run_on_engine(move |world, state| state.memory.create(world, device, bytes))?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(handle, created) }
    })
}

pub(super) unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> Code {
    driver_call(|| {
        current_gpu()?
            .host
            .run_on_engine(move |world, state| state.memory.release(world, handle))
    })
}

pub(super) unsafe extern "C" fn cuMemExportToShareableHandle(
    to: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    _flags: c_ulonglong,
) -> Code {
    driver_call(|| {
        ensure_descriptor(kind)?;
        let fd = current_gpu()?.host.call()?.memory.export(handle)?;
        // SAFETY: for file descriptors, the caller passes null or memory for an int.
        unsafe { write_out(to.cast::<c_int>(), fd.into_raw_fd()) }
    })
}

pub(super) unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    descriptor: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> Code {
    driver_call(|| {
        ensure_descriptor(kind)?;
        let fd = c_int::try_from(descriptor as isize)
            .ok()
            .filter(|fd| *fd >= 0);
        let fd = fd.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: the caller passes an open descriptor in the place of a pointer.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let imported = current_gpu()?.host.call()?.memory.import(fd)?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(handle, imported) }
    })
}

pub(super) unsafe extern "C" fn cuMemAddressReserve(
    address: *mut CUdeviceptr,
    bytes: usize,
    _alignment: usize,
    _wish: CUdeviceptr,
    _flags: c_ulonglong,
) -> Code {
    driver_call(|| {
        let reserved = current_gpu()?
            .host
            .run_on_engine(move |world, state| state.memory.reserve(world, bytes as u64))?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(address, reserved) }
    })
}

pub(super) unsafe extern "C" fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> Code {
    driver_call(|| {
        current_gpu()?
            .host
            .run_on_engine(move |world, state| state.memory.unreserve(world, address, bytes as u64))
    })
}

pub(super) unsafe extern "C" fn cuMemMap(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    _flags: c_ulonglong,
) -> Code {
    driver_call(|| {
        if offset != 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        current_gpu()?
            .host
            .call()?
            .memory
            .map(address, bytes as u64, handle)
    })
}

pub(super) unsafe extern "C" fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> Code {
    driver_call(|| {
        current_gpu()?
            .host
            .run_on_engine(move |world, state| state.memory.unmap(world, address, bytes as u64))
    })
}

pub(super) unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    bytes: usize,
    request: *const CUmemAccessDesc,
    count: usize,
) -> Code {
    driver_call(|| {
        let gpu = current_gpu()?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        let request = unsafe { request.as_ref() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        if request.flags != CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE || count != 1 {
            return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
        }
        let device = gpu.device_at(&request.location)?;
        gpu.host.run_on_engine(move |world, state| {
            state.memory.allow(world, address, bytes as u64, device)
        })
    })
}

impl super::call::TargetGpu {
    /// Returns the device at a location, which must be on this host.
    fn device_at(&self, location: &CUmemLocation) -> Result<u32> {
        let (host, device) = device_at(location)?;
        if host != self.host.index || device >= self.host.options.world.devices {
            return Err(Code::CUDA_ERROR_INVALID_DEVICE);
        }
        Ok(device)
    }
}

/// Returns the host and the device at a location.
fn device_at(location: &CUmemLocation) -> Result<(u32, u32)> {
    if location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
    }
    const { assert!(size_of::<CUmemLocation>() == 8) };
    // SAFETY: the struct is a type and an ordinal of 32 bits each. From CUDA 13.2 on, the ordinal is in a union whose name
    // bindgen has made up.
    let ordinal = unsafe { (&raw const *location).cast::<c_int>().add(1).read() };
    let (host, device) = device(ordinal)?;
    let host = host.ok_or(Code::CUDA_ERROR_DEVICE_UNAVAILABLE)?;
    Ok((host.index, device))
}

/// Fails if a handle type is not a file descriptor.
fn ensure_descriptor(kind: CUmemAllocationHandleType) -> Result<()> {
    match kind {
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Ok(()),
        _ => Err(Code::CUDA_ERROR_NOT_SUPPORTED),
    }
}
