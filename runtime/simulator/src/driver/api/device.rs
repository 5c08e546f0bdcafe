//! The version of the driver, and the properties of GPUs.

use super::call::{driver_call, write_out};
use super::error_text::{error_name, error_text};
use crate::driver::address_space::TOTAL_BYTES;
use crate::driver::host::HostOptions;
use crate::driver::registry::{DEVICES_PER_HOST, HOSTS, device};
use crate::driver::residency::{SMEM_PER_SM_BYTES, THREADS_PER_SM};
use crate::driver::result::{Code, Result};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicU64, Ordering};

/// CUDA 13.0, the version of cudarc's bindings.
const VERSION: c_int = 13_000;

pub(super) unsafe extern "C" fn cuInit(_flags: c_uint) -> Code {
    Code::CUDA_SUCCESS
}

/// The number of calls of [`cuDriverGetVersion`].
static VERSION_CALLS: AtomicU64 = AtomicU64::new(0);

/// Returns how often the version was requested.
pub(crate) fn version_calls() -> u64 {
    VERSION_CALLS.load(Ordering::Relaxed)
}

pub(super) unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    VERSION_CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { write_out(version, VERSION) })
}

pub(super) unsafe extern "C" fn cuGetErrorName(error: Code, text: *mut *const c_char) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { write_out(text, error_name(error).as_ptr()) })
}

pub(super) unsafe extern "C" fn cuGetErrorString(error: Code, text: *mut *const c_char) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { write_out(text, error_text(error).as_ptr()) })
}

pub(super) unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { write_out(count, (HOSTS * DEVICES_PER_HOST) as c_int) })
}

pub(super) unsafe extern "C" fn cuDeviceGet(to: *mut CUdevice, ordinal: c_int) -> Code {
    driver_call(|| {
        device(ordinal)?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(to, ordinal) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceGetName(
    name: *mut c_char,
    len: c_int,
    dev: CUdevice,
) -> Code {
    driver_call(|| {
        let text = options(dev)?.map_or("simulated GPU".to_owned(), |options| options.name);
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { put_text(name, len, &text) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut sys::CUuuid, dev: CUdevice) -> Code {
    driver_call(|| {
        device(dev)?;
        let mut bytes = *b"mkernel-sim\0\0\0\0\0";
        bytes[15] = dev as u8;
        let bytes = bytes.map(|byte| byte as c_char);
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(uuid, sys::CUuuid { bytes }) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> Code {
    driver_call(|| {
        device(dev)?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(bytes, TOTAL_BYTES as usize) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: Attribute,
    dev: CUdevice,
) -> Code {
    driver_call(|| {
        let figure = figure(attribute, options(dev)?.as_ref(), dev);
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(value, figure) }
    })
}

/// Returns an attribute of a GPU. Attributes that simulated GPUs do not have are 0, which means no for features.
fn figure(attribute: Attribute, options: Option<&HostOptions>, dev: CUdevice) -> c_int {
    let of_host =
        |figure: fn(&HostOptions) -> u32| options.map_or(0, |options| figure(options) as c_int);
    match attribute {
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
        Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => of_host(|host| host.sm_count),
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => {
            of_host(|host| host.smem_bytes)
        }
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => 48 << 10,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => {
            SMEM_PER_SM_BYTES as c_int
        }
        Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => of_host(|host| host.l2_bytes as u32),
        Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => THREADS_PER_SM as c_int,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => dev / DEVICES_PER_HOST as c_int,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => dev % DEVICES_PER_HOST as c_int,
        Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        | Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => 1,
        _ => 0,
    }
}

pub(super) unsafe extern "C" fn cuDeviceGetPCIBusId(
    text: *mut c_char,
    len: c_int,
    dev: CUdevice,
) -> Code {
    driver_call(|| {
        device(dev)?;
        let per_host = DEVICES_PER_HOST as c_int;
        let bus_id = format!("{:04X}:{:02X}:00.0", dev / per_host, dev % per_host);
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { put_text(text, len, &bus_id) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceGetByPCIBusId(
    to: *mut CUdevice,
    text: *const c_char,
) -> Code {
    driver_call(|| {
        if text.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller passes a text that ends with a NUL.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let mut parts = text
            .split(':')
            .map(|part| c_int::from_str_radix(part, 16).ok());
        let (Some(Some(host)), Some(Some(bus))) = (parts.next(), parts.next()) else {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        };
        if !(0..DEVICES_PER_HOST as c_int).contains(&bus) || !(0..HOSTS as c_int).contains(&host) {
            return Err(Code::CUDA_ERROR_INVALID_DEVICE);
        }
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(to, host * DEVICES_PER_HOST as c_int + bus) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceCanAccessPeer(
    can: *mut c_int,
    dev: CUdevice,
    peer: CUdevice,
) -> Code {
    driver_call(|| {
        let can_access = are_peers(dev, peer)?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(can, c_int::from(can_access)) }
    })
}

/// Returns 1 for all attributes of two GPUs of one host, since NVLink supports all of them.
pub(super) unsafe extern "C" fn cuDeviceGetP2PAttribute(
    value: *mut c_int,
    _attribute: sys::CUdevice_P2PAttribute,
    dev: CUdevice,
    peer: CUdevice,
) -> Code {
    driver_call(|| {
        let has = are_peers(dev, peer)?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { write_out(value, c_int::from(has)) }
    })
}

/// Returns whether two GPUs are different GPUs of one host.
fn are_peers(dev: CUdevice, peer: CUdevice) -> Result<bool> {
    device(dev).and(device(peer))?;
    let per_host = DEVICES_PER_HOST as c_int;
    Ok(dev != peer && dev / per_host == peer / per_host)
}

/// Returns the options of the device's host, or `None` if the host is not claimed.
fn options(dev: CUdevice) -> Result<Option<HostOptions>> {
    let (host, _) = device(dev)?;
    Ok(host.map(|host| host.options.clone()))
}

/// Writes as much of `text` as fits, and a NUL.
///
/// # Safety
/// `to` must be null or point to memory for `len` characters.
unsafe fn put_text(to: *mut c_char, len: c_int, text: &str) -> Result<()> {
    let room = usize::try_from(len).unwrap_or(0);
    if to.is_null() || room == 0 {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    let fits = text.len().min(room - 1);
    // SAFETY: `fits` bytes and a NUL are at most `len` bytes, for which the caller passes memory.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), fits);
        to.add(fits).write(0);
    }
    Ok(())
}
