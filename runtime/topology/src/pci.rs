//! [`BusId`]: the address of a PCI function, and [`PciLocation`]: its path from the host bridge.

use crate::sysfs::Sysfs;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The address of a PCI function, such as `0000:1b:00.0`. Addresses are ordered as in `nvidia-smi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusId {
    domain: u32,
    bus: u8,
    /// The device number, 5 bits.
    device: u8,
    /// The function number, 3 bits.
    function: u8,
}

/// The text is not a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a PCI bus id such as 0000:1b:00.0")]
pub struct InvalidBusId;

impl FromStr for BusId {
    type Err = InvalidBusId;

    /// Parses the kernel's form `0000:1b:00.0` and the driver's form `00000000:1B:00.0`.
    fn from_str(text: &str) -> Result<Self, InvalidBusId> {
        let hex = |digits: &str, length: std::ops::RangeInclusive<usize>| {
            let valid = length.contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = valid.then(|| u32::from_str_radix(digits, 16).ok());
            number.flatten().ok_or(InvalidBusId)
        };
        let (domain, rest) = text.split_once(':').ok_or(InvalidBusId)?;
        let (bus, rest) = rest.split_once(':').ok_or(InvalidBusId)?;
        let (device, function) = rest.split_once('.').ok_or(InvalidBusId)?;
        let small = |value: u32, limit: u32| {
            u8::try_from(value)
                .ok()
                .filter(|_| value < limit)
                .ok_or(InvalidBusId)
        };
        Ok(Self {
            domain: hex(domain, 4..=8)?,
            bus: small(hex(bus, 2..=2)?, 256)?,
            device: small(hex(device, 2..=2)?, 32)?,
            function: small(hex(function, 1..=1)?, 8)?,
        })
    }
}

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl Serialize for BusId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The location of a PCI function in the PCI tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PciLocation {
    /// The address of the function.
    pub bus_id: BusId,
    /// The host bridge, such as `pci0000:15`. `None` if the tree does not show it.
    pub host_bridge: Option<String>,
    /// The root port and then the ports of switches, down to the port above the function.
    pub bridges: Vec<BusId>,
    /// The NUMA node. `None` if the firmware does not state it.
    pub numa_node: Option<u32>,
}

/// Returns the folder of a function below the sysfs root.
pub(crate) fn folder(bus_id: BusId) -> String {
    format!("bus/pci/devices/{bus_id}")
}

/// Reads the location of `bus_id`, whose folder is a link to `devices/pci0000:15/0000:15:01.0/…`.
pub(crate) fn location(sysfs: &mut Sysfs, bus_id: BusId) -> PciLocation {
    let folder = folder(bus_id);
    let (mut host_bridge, mut bridges) = (None, Vec::new());
    match sysfs.link(&folder) {
        Some(path) => (host_bridge, bridges) = bridges_of(&path, bus_id),
        None => sysfs.note(format!(
            "{folder}: not a symbolic link, so the PCIe path of {bus_id} is unknown"
        )),
    }
    let node = sysfs.parsed(&format!("{folder}/numa_node"), |text| {
        text.parse::<i32>().ok()
    });
    PciLocation {
        bus_id,
        host_bridge,
        bridges,
        numa_node: node.and_then(|node| u32::try_from(node).ok()),
    }
}

/// Returns the host bridge and the bridges above `bus_id` from the path of its folder.
fn bridges_of(path: &str, bus_id: BusId) -> (Option<String>, Vec<BusId>) {
    let mut parts = path
        .split('/')
        .skip_while(|part| !part.starts_with("pci") || !part.contains(':'));
    let host_bridge = parts.next().map(str::to_owned);
    let bridges = parts
        .filter_map(|part| part.parse().ok())
        .filter(|id| *id != bus_id);
    (host_bridge, bridges.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_the_kernel_and_of_the_driver_are_equal() {
        let kernel: BusId = "0000:9d:00.0"
            .parse()
            .expect("an address in the form of the kernel");
        assert_eq!("00000000:9D:00.0".parse(), Ok(kernel));
        assert_eq!(kernel.to_string(), "0000:9d:00.0");
        let vmd: BusId = "10000:e1:1f.7"
            .parse()
            .expect("an address with a wide domain");
        assert_eq!(vmd.to_string(), "10000:e1:1f.7");
        assert!(kernel < vmd);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "0",
            "pci0000:15",
            "0000:1b:00",
            "0000:1b:20.0",
            "0000:1b:00.8",
            "0000:1b:00.0 ",
            "0000:+b:00.0",
            "123456789:1b:00.0",
            "0000:1b:00.0.0",
            "0000:é:00.0",
        ] {
            assert_eq!(text.parse::<BusId>(), Err(InvalidBusId), "{text:?}");
        }
    }

    #[test]
    fn bridges_are_listed_from_the_host_bridge_to_the_last_port() {
        let id = |text: &str| text.parse::<BusId>().expect("an address");
        let path =
            "../../../devices/pci0000:44/0000:44:00.0/0000:45:00.0/0000:46:01.4/0000:53:00.0";
        let ports = vec![id("0000:44:00.0"), id("0000:45:00.0"), id("0000:46:01.4")];
        assert_eq!(
            bridges_of(path, id("0000:53:00.0")),
            (Some("pci0000:44".into()), ports)
        );
        assert_eq!(
            bridges_of("../../../devices/odd", id("0000:53:00.0")),
            (None, vec![])
        );
    }
}
