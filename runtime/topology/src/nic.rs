//! [`Nic`]: the ports of the RDMA devices that sysfs lists.

use crate::numa::cpu_list;
use crate::pci::{self, BusId, PciLocation};
use crate::sysfs::Sysfs;
use serde::Serialize;
use std::fmt;

/// The kind of a NIC. NICs of different kinds cannot exchange data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum NicKind {
    /// Amazon's Elastic Fabric Adapter.
    Efa,
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet.
    RoCE,
}

impl fmt::Display for NicKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Efa => "EFA",
            Self::InfiniBand => "InfiniBand",
            Self::RoCE => "RoCE",
        })
    }
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// The name: `mlx5_0`, or `mlx4_0:2` for a device with several ports.
    pub name: String,
    /// The name of the device in verbs.
    pub device: String,
    /// The number of the port, counted from 1.
    pub port: u32,
    /// The kind of the NIC.
    #[serde(rename = "link")]
    pub kind: NicKind,
    /// Whether the port is active.
    pub is_up: bool,
    /// The data rate in Mbit/s. `None` if the tree does not state it.
    pub rate_mbps: Option<u64>,
    /// The location of the device. `None` for a software device.
    #[serde(rename = "place")]
    pub location: Option<PciLocation>,
    /// The device that has this device as a virtual function (SR-IOV), if the host has that device too. Both devices share a
    /// port.
    pub part_of: Option<String>,
    /// The CPUs near the device. Empty if the tree does not state them.
    #[serde(skip)]
    pub local_cpus: Vec<u32>,
}

const AMAZON: u32 = 0x1d0f;
/// The PCI device ids of EFA start at 0xefa0.
const EFA: std::ops::RangeInclusive<u32> = 0xefa0..=0xefaf;

/// The properties that all ports of a device share.
struct Device {
    name: String,
    location: Option<PciLocation>,
    is_efa: bool,
    local_cpus: Vec<u32>,
}

/// Reads the ports of all RDMA devices.
pub(crate) fn read(sysfs: &mut Sysfs) -> Vec<Nic> {
    let mut nics = Vec::new();
    for name in sysfs.list("class/infiniband") {
        let device = read_device(sysfs, name);
        let folder = format!("class/infiniband/{}/ports", device.name);
        let ports: Vec<u32> = (sysfs.list(&folder).iter())
            .filter_map(|port| port.parse().ok())
            .collect();
        if ports.is_empty() {
            sysfs.note(format!("{folder}: no port, {} is skipped", device.name));
        }
        let found: Vec<Nic> = (ports.iter())
            .filter_map(|port| read_port(sysfs, &device, *port, ports.len() > 1))
            .collect();
        nics.extend(found);
    }
    note_virtual_functions(sysfs, &mut nics);
    nics.sort_by_key(|nic| {
        let bus_id = nic.location.as_ref().map(|location| location.bus_id);
        (bus_id.is_none(), bus_id, nic.device.clone(), nic.port)
    });
    nics
}

/// Sets `part_of` for virtual functions, and notes that they are left out.
fn note_virtual_functions(sysfs: &mut Sysfs, nics: &mut [Nic]) {
    let at = |nic: &Nic| nic.location.as_ref().map(|location| location.bus_id);
    let devices: Vec<(Option<BusId>, String)> = nics
        .iter()
        .map(|nic| (at(nic), nic.device.clone()))
        .collect();
    for nic in nics {
        let link = at(nic).and_then(|id| sysfs.link(&format!("{}/physfn", pci::folder(id))));
        let whole = link.and_then(|path| path.rsplit('/').next()?.parse::<BusId>().ok());
        let found = devices
            .iter()
            .find(|(id, _)| whole.is_some() && *id == whole);
        if let Some((_, device)) = found {
            nic.part_of = Some(device.clone());
            let name = &nic.name;
            sysfs.note(format!(
                "{name} is left out unless it is named: it is a virtual function of {device}"
            ));
        }
    }
}

/// Reads the properties of a device.
fn read_device(sysfs: &mut Sysfs, name: String) -> Device {
    // The link `device` leads to the PCI function. Software devices have no such link.
    let target = sysfs.link(&format!("class/infiniband/{name}/device"));
    let bus_id = target.and_then(|path| path.rsplit('/').next()?.parse::<BusId>().ok());
    let Some(bus_id) = bus_id else {
        return Device {
            name,
            location: None,
            is_efa: false,
            local_cpus: Vec::new(),
        };
    };
    let folder = pci::folder(bus_id);
    let vendor = sysfs.hex(&format!("{folder}/vendor"));
    let is_efa = vendor == Some(AMAZON)
        && (sysfs.hex(&format!("{folder}/device"))).is_some_and(|id| EFA.contains(&id));
    let cpus = sysfs.text(&format!("{folder}/local_cpulist"));
    Device {
        name,
        location: Some(pci::location(sysfs, bus_id)),
        is_efa,
        local_cpus: cpus.and_then(|text| cpu_list(&text)).unwrap_or_default(),
    }
}

/// Reads a port. Returns `None`, with a note, if this crate cannot use the port.
fn read_port(sysfs: &mut Sysfs, device: &Device, port: u32, has_siblings: bool) -> Option<Nic> {
    let name = if has_siblings {
        format!("{}:{port}", device.name)
    } else {
        device.name.clone()
    };
    let folder = format!("class/infiniband/{}/ports/{port}", device.name);
    let kind = read_nic_kind(sysfs, device, &folder, &name)?;
    // An active port reads "4: ACTIVE".
    let is_up = sysfs.parsed(&format!("{folder}/state"), |text| {
        let number = text.split(':').next()?.trim().parse::<u32>().ok()?;
        Some(number == 4)
    })?;
    let rate = sysfs.parsed(&format!("{folder}/rate"), rate_mbps);
    if !is_up {
        let state = sysfs.text(&format!("{folder}/state")).unwrap_or_default();
        let state = state.split(':').next_back().unwrap_or("").trim().to_owned();
        sysfs.note(format!("{name} is left out: its port is {state}"));
    }
    Some(Nic {
        name,
        device: device.name.clone(),
        port,
        kind,
        is_up,
        rate_mbps: rate,
        location: device.location.clone(),
        part_of: None,
        local_cpus: device.local_cpus.clone(),
    })
}

/// Reads the kind of a port. Returns `None`, with a note, for other kinds.
fn read_nic_kind(sysfs: &mut Sysfs, device: &Device, folder: &str, name: &str) -> Option<NicKind> {
    if device.is_efa {
        return Some(NicKind::Efa);
    }
    // InfiniBand and RoCE devices read "1: CA". iWARP devices read "4: RNIC", and their link layer is Ethernet, as with RoCE.
    let node_type = sysfs.text(&format!("class/infiniband/{}/node_type", device.name));
    let node_type = node_type.unwrap_or_default();
    let layer = sysfs.text(&format!("{folder}/link_layer"));
    let kind = match layer.as_deref() {
        Some("InfiniBand") => Some(NicKind::InfiniBand),
        Some("Ethernet") if node_type.starts_with("1:") => Some(NicKind::RoCE),
        _ => None,
    };
    if kind.is_none() {
        let layer = layer.unwrap_or_else(|| "none".into());
        sysfs.note(format!(
            "{name} is left out: neither InfiniBand, RoCE nor EFA (link layer {layer:?}, node type {node_type:?})"
        ));
    }
    kind
}

/// Parses rates such as `400 Gb/sec (4X NDR)` and `2.5 Gb/sec (1X SDR)`.
fn rate_mbps(text: &str) -> Option<u64> {
    let (number, _) = text.split_once(" Gb/sec")?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let tenths: u64 = tenths.get(..1)?.parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(1000)?.checked_add(tenths * 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_the_kernel_writes_them() {
        assert_eq!(rate_mbps("400 Gb/sec (4X NDR)"), Some(400_000));
        assert_eq!(rate_mbps("2.5 Gb/sec (1X SDR)"), Some(2_500));
        for odd in [
            "",
            "fast",
            "-1 Gb/sec",
            "99999999999999999999 Gb/sec",
            "1.é Gb/sec",
            "1. Gb/sec",
        ] {
            assert_eq!(rate_mbps(odd), None, "{odd}");
        }
    }
}
