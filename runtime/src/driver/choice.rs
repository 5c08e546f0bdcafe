//! Real GPUs or simulated ones: chosen once for a process, since cudarc has one driver.

use super::probe;
use crate::env::{self, Device};
use crate::error::Error;
use crate::simulation;
use std::ffi::{c_int, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What GPUs this process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gpu,
    Simulated,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Gpu => "the GPUs of this host",
            Self::Simulated => "simulated GPUs",
        }
    }
}

fn chosen() -> MutexGuard<'static, Option<Kind>> {
    static CHOSEN: Mutex<Option<Kind>> = Mutex::new(None);
    // What it guards is whole between any two statements.
    CHOSEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the driver ready that `MKERNEL_DEVICE` names. Must come before any call of cudarc, which panics without one.
pub(crate) fn choose() -> Result<Kind, Error> {
    let mut chosen = chosen();
    let kind = wanted(*chosen)?;
    if chosen.is_none() && kind == Kind::Simulated && env::device()? == Device::Auto {
        tracing::warn!(
            "no GPU here, so kernels run on simulated GPUs, slowly; set MKERNEL_DEVICE=gpu to get an error instead"
        );
    }
    make_ready(&mut chosen, kind)?;
    Ok(kind)
}

/// Makes the simulated driver ready, whatever `MKERNEL_DEVICE` says.
pub(crate) fn use_simulated() -> Result<(), Error> {
    make_ready(&mut chosen(), Kind::Simulated)
}

/// Whether `MKERNEL_DEVICE` comes to simulated GPUs. Makes nothing ready.
pub(crate) fn wants_simulated() -> Result<bool, Error> {
    Ok(wanted(*chosen())? == Kind::Simulated)
}

fn wanted(chosen: Option<Kind>) -> Result<Kind, Error> {
    Ok(match (env::device()?, chosen) {
        (Device::Gpu, _) => Kind::Gpu,
        (Device::Simulated, _) => Kind::Simulated,
        (Device::Auto, Some(kind)) => kind,
        (Device::Auto, None) if has_gpu() => Kind::Gpu,
        (Device::Auto, None) => Kind::Simulated,
    })
}

fn make_ready(chosen: &mut Option<Kind>, kind: Kind) -> Result<(), Error> {
    match (*chosen, kind) {
        (Some(chosen), wanted) if chosen != wanted => {
            return Err(Error::OtherDevices {
                wanted: wanted.name(),
                chosen: chosen.name(),
            });
        }
        (_, Kind::Gpu) => probe()?,
        (_, Kind::Simulated) => simulation::activate()?,
    }
    *chosen = Some(kind);
    Ok(())
}

/// Whether there is a driver that shows a GPU. Past cudarc, which would keep that driver.
fn has_gpu() -> bool {
    // SAFETY: libcuda's initialisers have no preconditions, and its functions are declared so: they return an enumeration
    // of 32 bits. `cuInit` may be called any number of times, so cudarc's call of it loses nothing. Before it the library
    // has started nothing, so it may be closed; after it it stays open, whatever it said.
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
        // The driver may have threads of its own by now.
        std::mem::forget(library);
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn who_has_no_driver_is_told_of_simulated_gpus() {
        // SAFETY: there is no such library.
        let missing = unsafe { libloading::Library::new("libmkernel-none.so.1") };
        let missing = missing.expect_err("none");
        let text = Error::DriverMissing(Arc::new(missing)).to_string();
        for way in ["MKERNEL_DEVICE=auto", "MKERNEL_DEVICE=sim"] {
            assert!(text.contains(way), "{way:?} in {text:?}");
        }
    }
}
