//! The number of NVLink links of a GPU. The CUDA driver does not report this number, but NVML does.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

/// The number of links that NVML numbers (`NVML_NVLINK_MAX_LINKS`). A Hopper GPU has up to 18.
const MAX_LINKS: c_uint = 18;

/// Returns the number of active NVLink links of the GPU at `bus_id`, or `None` if NVML is not available. A container
/// without the driver capability `utility` does not have NVML.
pub(super) fn active_links(bus_id: &str) -> Option<u32> {
    let bus_id = CString::new(bus_id).ok()?;
    // SAFETY: the initialisers of NVML have no preconditions, and the functions have the signatures that nvml.h
    // declares. Every pointer refers to a live value, and nothing of NVML is used after nvmlShutdown.
    unsafe {
        let library = libloading::Library::new("libnvidia-ml.so.1").ok()?;
        let init = library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2");
        let shutdown = library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlShutdown");
        let (init, shutdown) = (init.ok()?, shutdown.ok()?);
        if init() != 0 {
            return None;
        }
        let links = count(&library, &bus_id);
        shutdown();
        links
    }
}

/// # Safety
/// `library` must be NVML, and must be initialised.
unsafe fn count(library: &libloading::Library, bus_id: &CString) -> Option<u32> {
    type Handle = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
    type State = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_int) -> c_int;
    // SAFETY: the caller guarantees the library. The signatures agree with nvml.h, and every pointer refers to a live
    // value.
    unsafe {
        let handle = library.get::<Handle>(b"nvmlDeviceGetHandleByPciBusId_v2");
        let state = library.get::<State>(b"nvmlDeviceGetNvLinkState");
        let (handle, state) = (handle.ok()?, state.ok()?);
        let mut device = std::ptr::null_mut();
        if handle(bus_id.as_ptr(), &raw mut device) != 0 {
            return None;
        }
        let is_active = |link: &c_uint| {
            let mut active = 0;
            // For a link that the GPU does not have, the call returns an error.
            state(device, *link, &raw mut active) == 0 && active != 0
        };
        Some((0..MAX_LINKS).filter(is_active).count() as u32)
    }
}
