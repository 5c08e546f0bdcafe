//! [`Distance`]: the PCIe distance between two PCI functions.

use crate::pci::PciLocation;
use serde::Serialize;
use std::fmt;

/// The path of data between a NIC and a GPU. Nearer paths compare as less than farther paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// Through a PCIe switch above both functions, without the CPU.
    Switch {
        /// The number of ports between the two functions and the port where their paths meet. The nearest switch of a cascade
        /// gives the smallest number.
        ports: usize,
    },
    /// Through one root port of the CPU.
    RootPort,
    /// Through one host bridge of the CPU.
    HostBridge,
    /// Through several host bridges of one NUMA node.
    NumaNode,
    /// Over the link between NUMA nodes.
    Across,
    /// The location of a function is unknown, for example the location of a software device.
    Unknown,
}

impl Distance {
    /// Returns the distance of two locations on a host with `numa_nodes` NUMA nodes.
    #[must_use]
    pub fn between(a: &PciLocation, b: &PciLocation, numa_nodes: usize) -> Self {
        if a.host_bridge.is_some() && a.host_bridge == b.host_bridge {
            let common = (a.bridges.iter().zip(&b.bridges))
                .take_while(|(a, b)| a == b)
                .count();
            return match common {
                0 => Self::HostBridge,
                1 => Self::RootPort,
                // A root port has one link, so a branch below a root port is at a switch.
                _ => Self::Switch {
                    ports: a.bridges.len() + b.bridges.len() - 2 * common,
                },
            };
        }
        match (a.numa_node, b.numa_node) {
            (Some(a), Some(b)) if a == b => Self::NumaNode,
            (Some(_), Some(_)) => Self::Across,
            _ if numa_nodes <= 1 => Self::NumaNode,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switch { .. } => "behind the same PCIe switch",
            Self::RootPort => "below the same root port",
            Self::HostBridge => "at the same host bridge",
            Self::NumaNode => "on the same NUMA node",
            Self::Across => "on another NUMA node",
            Self::Unknown => "at an unknown distance",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(bridge: Option<&str>, ports: &[&str], node: Option<u32>) -> PciLocation {
        let id = |text: &str| text.parse().expect("an address");
        PciLocation {
            bus_id: id("0000:ff:00.0"),
            host_bridge: bridge.map(str::to_owned),
            bridges: ports.iter().map(|port| id(port)).collect(),
            numa_node: node,
        }
    }

    #[test]
    fn distances_grow_along_the_tree() {
        let root = ["0000:15:01.0", "0000:16:00.0", "0000:17:00.0"];
        let gpu = location(Some("pci0000:15"), &root, Some(0));
        let from = |other: &PciLocation| Distance::between(&gpu, other, 2);
        let sibling = location(
            Some("pci0000:15"),
            &["0000:15:01.0", "0000:16:00.0", "0000:17:02.0"],
            Some(0),
        );
        let cascade = location(
            Some("pci0000:15"),
            &[
                "0000:15:01.0",
                "0000:16:00.0",
                "0000:17:03.0",
                "0000:18:00.0",
                "0000:19:00.0",
            ],
            Some(0),
        );
        let distances = [
            (sibling, Distance::Switch { ports: 2 }),
            (cascade, Distance::Switch { ports: 4 }),
            (
                location(Some("pci0000:15"), &["0000:15:01.0"], Some(0)),
                Distance::RootPort,
            ),
            (
                location(Some("pci0000:15"), &["0000:15:03.0"], Some(0)),
                Distance::HostBridge,
            ),
            (
                location(Some("pci0000:26"), &[], Some(0)),
                Distance::NumaNode,
            ),
            (location(Some("pci0000:a0"), &[], Some(1)), Distance::Across),
            (location(Some("pci0000:a0"), &[], None), Distance::Unknown),
        ];
        for (other, distance) in &distances {
            assert_eq!(from(other), *distance);
        }
        assert!(distances.windows(2).all(|pair| pair[0].1 < pair[1].1));
    }

    #[test]
    fn with_one_numa_node_all_devices_are_on_it() {
        let (a, b) = (
            location(Some("pci0000:00"), &[], None),
            location(Some("pci0000:80"), &[], None),
        );
        assert_eq!(Distance::between(&a, &b, 1), Distance::NumaNode);
        assert_eq!(Distance::between(&a, &b, 2), Distance::Unknown);
    }

    #[test]
    fn two_unknown_host_bridges_are_not_the_same() {
        let (a, b) = (location(None, &[], Some(0)), location(None, &[], Some(1)));
        assert_eq!(Distance::between(&a, &b, 2), Distance::Across);
    }
}
