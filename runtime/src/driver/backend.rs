//! [`Backend`]: real or simulated GPUs. A process chooses once, since cudarc loads one driver for the whole process.

use super::library::probe;
use crate::env::{self, DeviceChoice};
use crate::error::{DeviceError, Error};
use crate::simulation;
use std::ffi::{c_int, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The kind of GPUs that this process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Gpu,
    Simulated,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Self::Gpu => "the GPUs of this host",
            Self::Simulated => "simulated GPUs",
        }
    }
}

fn chosen() -> MutexGuard<'static, Option<Backend>> {
    static CHOSEN: Mutex<Option<Backend>> = Mutex::new(None);
    // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
    CHOSEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads the driver that `MKERNEL_DEVICE` selects. This must come before any call of cudarc, which panics without a
/// driver.
pub(crate) fn choose_backend() -> Result<Backend, Error> {
    let mut chosen = chosen();
    let kind = wanted(*chosen)?;
    if chosen.is_none() && kind == Backend::Simulated && env::device()? == DeviceChoice::Auto {
        tracing::warn!(
            "there is no GPU, so kernels run on simulated GPUs, which are slow; set MKERNEL_DEVICE=gpu to get an error instead"
        );
    }
    make_ready(&mut chosen, kind)?;
    Ok(kind)
}

/// Loads the simulated driver, regardless of `MKERNEL_DEVICE`.
pub(crate) fn use_simulated() -> Result<(), Error> {
    make_ready(&mut chosen(), Backend::Simulated)
}

/// Returns whether `MKERNEL_DEVICE` selects simulated GPUs. Loads no driver.
pub(crate) fn wants_simulated() -> Result<bool, Error> {
    Ok(wanted(*chosen())? == Backend::Simulated)
}

fn wanted(chosen: Option<Backend>) -> Result<Backend, Error> {
    Ok(match (env::device()?, chosen) {
        (DeviceChoice::Gpu, _) => Backend::Gpu,
        (DeviceChoice::Simulated, _) => Backend::Simulated,
        (DeviceChoice::Auto, Some(kind)) => kind,
        (DeviceChoice::Auto, None) if has_gpu() => Backend::Gpu,
        (DeviceChoice::Auto, None) => Backend::Simulated,
    })
}

fn make_ready(chosen: &mut Option<Backend>, kind: Backend) -> Result<(), Error> {
    match (*chosen, kind) {
        (Some(chosen), wanted) if chosen != wanted => {
            return Err(Error::Device(DeviceError::BackendConflict {
                wanted: wanted.name(),
                chosen: chosen.name(),
            }));
        }
        (_, Backend::Gpu) => probe()?,
        (_, Backend::Simulated) => simulation::activate()?,
    }
    *chosen = Some(kind);
    Ok(())
}

/// Returns whether the CUDA driver is installed and has a GPU. The check does not use cudarc, which would keep the
/// driver loaded.
fn has_gpu() -> bool {
    // SAFETY: the initialisers of libcuda have no preconditions, and its functions are declared with their signatures:
    // they return an enumeration of 32 bits. `cuInit` may be called any number of times, so cudarc can call it again.
    // Before `cuInit` the library has started nothing, so it may be closed. After `cuInit` it stays open, whatever the
    // call returned.
    unsafe {
        let Ok(library) = libloading::Library::new("libcuda.so.1") else {
            return false;
        };
        let init = library.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit");
        let count = library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDeviceGetCount");
        let (Ok(init), Ok(count)) = (init, count) else {
            return false;
        };
        let mut gpus = 0;
        let has = init(0) == 0 && count(&raw mut gpus) == 0 && gpus > 0;
        // The driver may have started threads.
        std::mem::forget(library);
        has
    }
}
