//! The connections between the GPUs of this host.

use super::backend::{Backend, choose_backend};
use super::call::{check, named};
use super::device::{bus_id, count};
use crate::error::Error;
use cudarc::driver::{CudaContext, result, sys};
use mkernel_topology::{BusId, GpuLink, GpuLinks};
use std::ffi::CString;
use sys::CUdevice_P2PAttribute as Attribute;

/// Returns the connection of each pair of GPUs that this process sees. The list is empty for simulated GPUs.
///
/// The driver has no attribute for NVLink. The driver reports whether atomics between two GPUs are native, which is the
/// case over NVLink and not over PCIe (CUDA driver API, `cuDeviceGetP2PAttribute`).
///
/// # Errors
/// [`Error::Device`] if the CUDA driver cannot be used, or [`Error::Cuda`] if a call failed.
pub fn gpu_links() -> Result<GpuLinks, Error> {
    if choose_backend()? == Backend::Simulated {
        return Ok(Vec::new());
    }
    let mut devices = Vec::new();
    for ordinal in 0..i32::try_from(count()?).unwrap_or(0) {
        let device = named("cuDeviceGet", result::device::get(ordinal))?;
        // A GPU without a PCI address that sysfs uses cannot have a link either.
        devices.extend(bus_id(device)?.parse::<BusId>().ok().map(|id| (id, device)));
    }
    devices.sort_unstable_by_key(|(id, _)| *id);
    let mut links = Vec::new();
    for (i, &(id, device)) in devices.iter().enumerate() {
        for &(peer_id, peer) in &devices[i + 1..] {
            links.push((id, peer_id, link(device, peer)?));
        }
    }
    Ok(links)
}

/// Returns the connection of two GPUs of the driver.
fn link(device: sys::CUdevice, peer: sys::CUdevice) -> Result<GpuLink, Error> {
    let has = |attribute| {
        let mut value = 0;
        // SAFETY: the pointer refers to a live integer, and both devices belong to the driver.
        let code = unsafe { sys::cuDeviceGetP2PAttribute(&raw mut value, attribute, device, peer) };
        check("cuDeviceGetP2PAttribute", code).map(|()| value != 0)
    };
    Ok(
        if has(Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? {
            GpuLink::NvLink
        } else if has(Attribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)? {
            GpuLink::Pcie
        } else {
            GpuLink::None
        },
    )
}

/// Returns the connection between `ctx`'s GPU and the GPU at `bus_id`, or `None` if this process does not see the GPU at
/// `bus_id`.
pub(crate) fn link_to(ctx: &CudaContext, bus_id: &str) -> Result<Option<GpuLink>, Error> {
    let Ok(text) = CString::new(bus_id) else {
        return Ok(None);
    };
    let mut peer = 0;
    // SAFETY: the pointer refers to a live value, and the text ends with a NUL.
    let seen = unsafe { sys::cuDeviceGetByPCIBusId(&raw mut peer, text.as_ptr()) };
    if seen.result().is_err() {
        return Ok(None);
    }
    link(ctx.cu_device(), peer).map(Some)
}
