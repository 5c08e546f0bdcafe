//! How the GPUs of this host reach each other.

use super::{Kind, bus_id, check, choose, count, named};
use crate::error::Error;
use cudarc::driver::{result, sys};
use mkernel_topology::{BusId, GpuLink, GpuLinks};
use sys::CUdevice_P2PAttribute as Attribute;

/// How each pair of the GPUs that this process sees reaches each other; nothing of simulated ones.
///
/// The driver has no attribute that says NVLink. It says whether atomics work natively between two GPUs, which they
/// do over NVLink and not over PCIe (CUDA driver API, `cuDeviceGetP2PAttribute`).
///
/// # Errors
/// [`Error::DriverMissing`], [`Error::DriverTooOld`], or a call that failed.
pub fn gpu_links() -> Result<GpuLinks, Error> {
    if choose()? == Kind::Simulated {
        return Ok(Vec::new());
    }
    let mut devices = Vec::new();
    for ordinal in 0..i32::try_from(count()?).unwrap_or(0) {
        let device = named("cuDeviceGet", result::device::get(ordinal))?;
        // What has no address that sysfs could know has no link that it could ask for.
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

/// How two GPUs of the driver reach each other.
pub(super) fn link(device: sys::CUdevice, peer: sys::CUdevice) -> Result<GpuLink, Error> {
    let has = |attribute| {
        let mut value = 0;
        // SAFETY: the pointer is to a live int, and both devices are the driver's.
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
