//! Properties of a GPU that NVML reports and the CUDA driver does not: active NVLink links, and the clock.

use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};

/// The number of links that NVML numbers (`NVML_NVLINK_MAX_LINKS`). A Hopper GPU has up to 18.
const MAX_LINKS: c_uint = 18;
/// The clock of SMs (`NVML_CLOCK_SM`).
const CLOCK_SM: c_int = 1;

/// A GPU of NVML, which is initialised.
struct Device<'a> {
    library: &'a Library,
    handle: *mut c_void,
}

/// Returns the number of active NVLink links of the GPU at `bus_id`, or `None` if NVML is not available. A container
/// without the driver capability `utility` does not have NVML.
pub(super) fn active_links(bus_id: &str) -> Option<u32> {
    on_device(bus_id, |Device { library, handle }| {
        type State = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_int) -> c_int;
        // SAFETY: the signature agrees with nvml.h.
        let state = unsafe { library.get::<State>(b"nvmlDeviceGetNvLinkState") }.ok()?;
        let is_active = |link: &c_uint| {
            let mut active = 0;
            // For a link that the GPU does not have, the call returns an error.
            // SAFETY: the pointer refers to a live value, and the handle is one of NVML.
            let status = unsafe { state(handle, *link, &raw mut active) };
            status == 0 && active != 0
        };
        Some((0..MAX_LINKS).filter(is_active).count() as u32)
    })
}

/// Returns the clock of the SMs of the GPU at `bus_id` in MHz, or `None` if NVML is not available.
pub(crate) fn sm_clock_mhz(bus_id: &str) -> Option<u32> {
    on_device(bus_id, |Device { library, handle }| {
        type Clock = unsafe extern "C" fn(*mut c_void, c_int, *mut c_uint) -> c_int;
        // SAFETY: the signature agrees with nvml.h.
        let clock = unsafe { library.get::<Clock>(b"nvmlDeviceGetClockInfo") }.ok()?;
        let mut mhz = 0;
        // SAFETY: the pointer refers to a live value, and the handle is one of NVML.
        let status = unsafe { clock(handle, CLOCK_SM, &raw mut mhz) };
        (status == 0).then_some(mhz)
    })
}

/// Loads NVML, calls `read` with the GPU at `bus_id`, and unloads NVML. Returns `None` if NVML does not have the GPU.
fn on_device<T>(bus_id: &str, read: impl FnOnce(Device) -> Option<T>) -> Option<T> {
    type Handle = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
    let bus_id = CString::new(bus_id).ok()?;
    // SAFETY: the initialisers of NVML have no preconditions, and the functions have the signatures that nvml.h
    // declares. Every pointer refers to a live value, and nothing of NVML is used after nvmlShutdown.
    unsafe {
        let library = Library::new("libnvidia-ml.so.1").ok()?;
        let init = library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2");
        let shutdown = library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlShutdown");
        let find = library.get::<Handle>(b"nvmlDeviceGetHandleByPciBusId_v2");
        let (init, shutdown, find) = (init.ok()?, shutdown.ok()?, find.ok()?);
        if init() != 0 {
            return None;
        }
        let mut handle = std::ptr::null_mut();
        let found = find(bus_id.as_ptr(), &raw mut handle) == 0;
        let library = &library;
        let result = found.then(|| read(Device { library, handle })).flatten();
        shutdown();
        result
    }
}
