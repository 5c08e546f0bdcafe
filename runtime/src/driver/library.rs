//! Checks whether the CUDA driver is installed and new enough.

use super::call::{check, named};
use crate::error::{DeviceError, Error};
use cudarc::driver::{result, sys};
use std::sync::{Arc, OnceLock};

/// CUDA 13.0, which cudarc's bindings and the compiled kernels need.
const NEEDED_VERSION: i32 = 13_000;

/// Checks that the driver is installed and new enough. This must come before any other call, since cudarc panics
/// without libcuda.
pub(super) fn probe() -> Result<(), Error> {
    static DRIVER: OnceLock<libloading::Library> = OnceLock::new();
    if DRIVER.get().is_none() {
        // SAFETY: the initialisers of libcuda have no preconditions. cudarc loads the same library next.
        let library = unsafe { libloading::Library::new("libcuda.so.1") };
        let _ = DRIVER.set(
            library.map_err(|error| Error::Device(DeviceError::DriverMissing(Arc::new(error))))?,
        );
    }
    let mut found = 0;
    // SAFETY: the pointer refers to a live integer. The call needs no initialisation.
    check("cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&raw mut found)
    })?;
    if found < NEEDED_VERSION {
        return Err(Error::Device(DeviceError::DriverTooOld {
            found,
            needed: NEEDED_VERSION,
        }));
    }
    named("cuInit", result::init())
}
