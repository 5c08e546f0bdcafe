//! The driver itself, and what it says of GPUs.

use super::{answer, put};
use crate::driver::registry::{DEVICES_PER_HOST, HOSTS, HostOptions, device};
use crate::driver::{Code, Result, memory};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute};
use std::ffi::{CStr, c_char, c_int, c_uint};

/// CUDA 13.0: what cudarc's bindings are made for.
const VERSION: c_int = 13_000;
/// Of a Hopper SM, of which one CTA can have all but 1 KiB.
pub(super) const SMEM_PER_SM_BYTES: u32 = 233_472;

pub(super) unsafe extern "C" fn cuInit(_flags: c_uint) -> Code {
    Code::CUDA_SUCCESS
}

pub(super) unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { put(version, VERSION) })
}

pub(super) unsafe extern "C" fn cuGetErrorName(error: Code, text: *mut *const c_char) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { put(text, error_name(error).as_ptr()) })
}

pub(super) unsafe extern "C" fn cuGetErrorString(error: Code, text: *mut *const c_char) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { put(text, error_text(error).as_ptr()) })
}

pub(super) unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { put(count, (HOSTS * DEVICES_PER_HOST) as c_int) })
}

pub(super) unsafe extern "C" fn cuDeviceGet(to: *mut CUdevice, ordinal: c_int) -> Code {
    answer(|| {
        device(ordinal)?;
        // SAFETY: by the caller.
        unsafe { put(to, ordinal) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceGetName(
    name: *mut c_char,
    len: c_int,
    dev: CUdevice,
) -> Code {
    answer(|| {
        let text = options(dev)?.map_or("simulated GPU".to_owned(), |options| options.name);
        // SAFETY: by the caller.
        unsafe { put_text(name, len, &text) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut sys::CUuuid, dev: CUdevice) -> Code {
    answer(|| {
        device(dev)?;
        let mut bytes = *b"mkernel-sim\0\0\0\0\0";
        bytes[15] = dev as u8;
        let bytes = bytes.map(|byte| byte as c_char);
        // SAFETY: by the caller.
        unsafe { put(uuid, sys::CUuuid { bytes }) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> Code {
    answer(|| {
        device(dev)?;
        // SAFETY: by the caller.
        unsafe { put(bytes, memory::TOTAL_BYTES as usize) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: Attribute,
    dev: CUdevice,
) -> Code {
    answer(|| {
        let figure = figure(attribute, options(dev)?.as_ref(), dev);
        // SAFETY: by the caller.
        unsafe { put(value, figure) }
    })
}

/// What is not known of a simulated GPU is 0, which says no where an attribute is a question.
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
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => 2048,
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
    answer(|| {
        device(dev)?;
        let per_host = DEVICES_PER_HOST as c_int;
        let bus_id = format!("{:04X}:{:02X}:00.0", dev / per_host, dev % per_host);
        // SAFETY: by the caller.
        unsafe { put_text(text, len, &bus_id) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceGetByPCIBusId(
    to: *mut CUdevice,
    text: *const c_char,
) -> Code {
    answer(|| {
        if text.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: by the caller, the text ends with a NUL.
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
        // SAFETY: by the caller.
        unsafe { put(to, host * DEVICES_PER_HOST as c_int + bus) }
    })
}

pub(super) unsafe extern "C" fn cuDeviceCanAccessPeer(
    can: *mut c_int,
    dev: CUdevice,
    peer: CUdevice,
) -> Code {
    answer(|| {
        let can_access = are_peers(dev, peer)?;
        // SAFETY: by the caller.
        unsafe { put(can, c_int::from(can_access)) }
    })
}

/// The GPUs of a host are joined by NVLink, which has everything that there is an attribute for.
pub(super) unsafe extern "C" fn cuDeviceGetP2PAttribute(
    value: *mut c_int,
    _attribute: sys::CUdevice_P2PAttribute,
    dev: CUdevice,
    peer: CUdevice,
) -> Code {
    answer(|| {
        let has = are_peers(dev, peer)?;
        // SAFETY: by the caller.
        unsafe { put(value, c_int::from(has)) }
    })
}

/// Whether two GPUs are different ones of a host.
fn are_peers(dev: CUdevice, peer: CUdevice) -> Result<bool> {
    device(dev).and(device(peer))?;
    let per_host = DEVICES_PER_HOST as c_int;
    Ok(dev != peer && dev / per_host == peer / per_host)
}

/// What the device's host is like; none if nobody has claimed it.
fn options(dev: CUdevice) -> Result<Option<HostOptions>> {
    let (host, _) = device(dev)?;
    Ok(host.map(|host| host.options.clone()))
}

/// Writes as much of `text` as fits, and a NUL.
///
/// # Safety
/// `to` must be null or a place for `len` characters.
unsafe fn put_text(to: *mut c_char, len: c_int, text: &str) -> Result<()> {
    let room = usize::try_from(len).unwrap_or(0);
    if to.is_null() || room == 0 {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    let fits = text.len().min(room - 1);
    // SAFETY: `fits` and the NUL behind it are no more than `len`; the rest by the caller.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), fits);
        to.add(fits).write(0);
    }
    Ok(())
}

fn error_name(error: Code) -> &'static CStr {
    match error {
        Code::CUDA_SUCCESS => c"CUDA_SUCCESS",
        Code::CUDA_ERROR_INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        Code::CUDA_ERROR_OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        Code::CUDA_ERROR_DEINITIALIZED => c"CUDA_ERROR_DEINITIALIZED",
        Code::CUDA_ERROR_DEVICE_UNAVAILABLE => c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        Code::CUDA_ERROR_INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        Code::CUDA_ERROR_INVALID_IMAGE => c"CUDA_ERROR_INVALID_IMAGE",
        Code::CUDA_ERROR_INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        Code::CUDA_ERROR_OPERATING_SYSTEM => c"CUDA_ERROR_OPERATING_SYSTEM",
        Code::CUDA_ERROR_INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        Code::CUDA_ERROR_NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        Code::CUDA_ERROR_NOT_READY => c"CUDA_ERROR_NOT_READY",
        Code::CUDA_ERROR_CONTEXT_IS_DESTROYED => c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        Code::CUDA_ERROR_LAUNCH_FAILED => c"CUDA_ERROR_LAUNCH_FAILED",
        Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        Code::CUDA_ERROR_NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION => c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        Code::CUDA_ERROR_CAPTURED_EVENT => c"CUDA_ERROR_CAPTURED_EVENT",
        Code::CUDA_ERROR_ILLEGAL_STATE => c"CUDA_ERROR_ILLEGAL_STATE",
        Code::CUDA_ERROR_UNKNOWN => c"CUDA_ERROR_UNKNOWN",
        _ => c"an error of CUDA",
    }
}

/// What the simulated driver means by a code.
fn error_text(error: Code) -> &'static CStr {
    match error {
        Code::CUDA_SUCCESS => c"no error",
        Code::CUDA_ERROR_INVALID_VALUE => c"invalid argument (simulated GPU)",
        Code::CUDA_ERROR_OUT_OF_MEMORY => c"out of memory (simulated GPU)",
        Code::CUDA_ERROR_DEINITIALIZED => c"the simulated host is gone",
        Code::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            c"this simulated GPU belongs to no job; use those of a Communicator"
        }
        Code::CUDA_ERROR_INVALID_DEVICE => c"there is no such simulated GPU",
        Code::CUDA_ERROR_INVALID_IMAGE => {
            c"this is no kernel for simulated GPUs; was it compiled for a GPU?"
        }
        Code::CUDA_ERROR_INVALID_CONTEXT => c"no context is current, or not one of simulated GPUs",
        Code::CUDA_ERROR_INVALID_HANDLE => {
            c"the handle is not one of simulated GPUs, or was destroyed"
        }
        Code::CUDA_ERROR_LAUNCH_FAILED => {
            c"a kernel failed on this simulated GPU; the simulator's findings say why"
        }
        Code::CUDA_ERROR_NOT_SUPPORTED => c"simulated GPUs do not support this",
        Code::CUDA_ERROR_UNKNOWN => c"the simulator failed; its message is in the program's output",
        other => error_name(other),
    }
}
