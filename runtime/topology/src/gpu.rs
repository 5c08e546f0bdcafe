//! The NVIDIA GPUs that sysfs lists.

use crate::pci::{self, BusId, PciLocation};
use crate::sysfs::Sysfs;
use serde::Serialize;

const NVIDIA: u32 = 0x10de;
/// The base class and subclass of a VGA-compatible display controller, and of a 3D controller, which is the class of
/// data-centre GPUs. NVSwitches, audio functions and other NVIDIA devices have other classes.
const CLASSES: [u32; 2] = [0x03_00, 0x03_02];

/// An NVIDIA GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// The location of the GPU.
    #[serde(rename = "place")]
    pub location: PciLocation,
    /// Vendor and device id, such as `10de:2330`.
    pub pci_id: String,
}

/// Reads all NVIDIA GPUs.
pub(crate) fn read(sysfs: &mut Sysfs) -> Vec<Gpu> {
    let mut gpus = Vec::new();
    for name in sysfs.list("bus/pci/devices") {
        let Ok(bus_id) = name.parse::<BusId>() else {
            sysfs.note(format!("bus/pci/devices/{name}: not a PCI bus id, skipped"));
            continue;
        };
        let folder = pci::folder(bus_id);
        // Devices of other vendors are ignored without a note, even if their files are unusual.
        let is_nvidia = sysfs
            .text(&format!("{folder}/vendor"))
            .is_some_and(|text| text == "0x10de");
        if !is_nvidia {
            continue;
        }
        let Some(class) = sysfs.hex(&format!("{folder}/class")) else {
            continue;
        };
        if CLASSES.contains(&(class >> 8)) {
            let device = sysfs.hex(&format!("{folder}/device")).unwrap_or(0);
            gpus.push(Gpu {
                location: pci::location(sysfs, bus_id),
                pci_id: format!("{NVIDIA:04x}:{device:04x}"),
            });
        }
    }
    gpus.sort_by_key(|gpu| gpu.location.bus_id);
    gpus
}
