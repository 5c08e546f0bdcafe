//! The settings of PCIe that slow down or prevent traffic between NICs and GPUs.

use super::finding::Finding;
use mkernel_topology::{BusId, Topology};
use std::fs;
use std::path::Path;

const ACS: &str = "acs";
const IOMMU: &str = "iommu";

/// The id of the extended capability Access Control Services (PCIe base specification, 7.7.11).
const ACS_CAPABILITY: u16 = 0x000d;
/// Bits of the ACS control register: P2P request redirect and P2P completion redirect.
const REDIRECT: u16 = 0b1100;

/// The state of ACS in a bridge.
#[derive(Debug, PartialEq, Eq)]
enum Acs {
    Off,
    /// Traffic between devices below the bridge takes the way over the root complex.
    Redirects,
    /// Only root may read the extended configuration space.
    Unreadable,
}

/// Whether bridges send traffic between devices over the root complex.
pub fn access_control(topology: &Topology, sys: &Path) -> Finding {
    let gpus = topology.gpus.iter().map(|gpu| &gpu.location);
    let nics = topology.nics.iter().filter_map(|nic| nic.location.as_ref());
    if topology.gpus.is_empty() || topology.nics.is_empty() {
        return Finding::ok(ACS, "no NIC for RDMA beside a GPU");
    }
    let mut bridges: Vec<_> = gpus.chain(nics).flat_map(|at| &at.bridges).collect();
    bridges.sort_unstable();
    bridges.dedup();
    let states = bridges.iter().map(|bridge| {
        let config = fs::read(device(sys, bridge).join("config"));
        (bridge, acs(&config.unwrap_or_default()))
    });
    let states: Vec<_> = states.collect();
    let with = |wanted: &Acs| -> Vec<String> {
        let those = states.iter().filter(|(_, state)| state == wanted);
        those.map(|(bridge, _)| bridge.to_string()).collect()
    };
    let (redirects, unreadable) = (with(&Acs::Redirects), with(&Acs::Unreadable));
    if !redirects.is_empty() {
        let commands: Vec<_> = redirects
            .iter()
            .map(|bridge| format!("setpci -s {bridge} ECAP_ACS+6.w=0"))
            .collect();
        let found = "traffic between NICs and GPUs takes the way over the root complex";
        let remedy = format!(
            "disable ACS in the firmware, or after each start as root:\n{}",
            commands.join("\n")
        );
        return Finding::fault(ACS, found, remedy);
    }
    match unreadable.is_empty() {
        true => Finding::ok(ACS, "off in all bridges of GPUs and NICs"),
        false => Finding::note(
            ACS,
            "unknown, since only root can read it",
            "sudo mkernel-gen doctor",
        ),
    }
}

fn device(sys: &Path, id: &BusId) -> std::path::PathBuf {
    sys.join("bus/pci/devices").join(id.to_string())
}

/// Finds ACS in the configuration space of a bridge.
fn acs(config: &[u8]) -> Acs {
    let word = |at: usize| Some(u16::from_le_bytes(config.get(at..at + 2)?.try_into().ok()?));
    // Extended capabilities begin at 0x100. Each has its id, then its version and the address of the next one.
    let mut at = 0x100;
    // A damaged list may be a circle.
    for _ in 0..64 {
        let (Some(id), Some(next)) = (word(at), word(at + 2)) else {
            return Acs::Unreadable;
        };
        if id == ACS_CAPABILITY {
            return match word(at + 6) {
                Some(control) if control & REDIRECT != 0 => Acs::Redirects,
                Some(_) => Acs::Off,
                None => Acs::Unreadable,
            };
        }
        at = usize::from(next >> 4);
        if at < 0x100 {
            break;
        }
    }
    Acs::Off
}

/// Whether an IOMMU translates the addresses of GPUs and NICs.
pub fn iommu(topology: &Topology, sys: &Path) -> Finding {
    let gpus = topology.gpus.iter().map(|gpu| &gpu.location);
    let nics = topology.nics.iter().filter_map(|nic| nic.location.as_ref());
    let devices: Vec<_> = gpus.chain(nics).map(|at| at.bus_id).collect();
    let kind = |id: &BusId| {
        let kind = fs::read_to_string(device(sys, id).join("iommu_group/type")).ok()?;
        (!kind.trim().eq("identity")).then(|| format!("{id} ({})", kind.trim()))
    };
    let translated: Vec<_> = devices.iter().filter_map(kind).collect();
    if translated.is_empty() {
        return Finding::ok(IOMMU, "translates no addresses of GPUs and NICs");
    }
    Finding::note(
        IOMMU,
        format!(
            "translates the addresses of {}, which slows down traffic between NICs and GPUs",
            translated.join(", ")
        ),
        "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub and reboot",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration space with two extended capabilities. ACS is the second capability.
    fn config(control: u16) -> Vec<u8> {
        let mut config = vec![0; 4096];
        let mut put =
            |at: usize, word: u16| config[at..at + 2].copy_from_slice(&word.to_le_bytes());
        put(0x100, 0x0001);
        put(0x102, 0x1482);
        put(0x148, ACS_CAPABILITY);
        put(0x14a, 0x0001);
        put(0x14e, control);
        config
    }

    #[test]
    fn acs_in_configuration_spaces() {
        assert_eq!(acs(&config(0x1d)), Acs::Redirects);
        assert_eq!(acs(&config(0x11)), Acs::Off);
        assert_eq!(acs(&[0; 4096]), Acs::Off);
        assert_eq!(acs(&[0; 64]), Acs::Unreadable);
        let mut circle = vec![0; 4096];
        circle[0x100..0x104].copy_from_slice(&[1, 0, 0, 0x10]);
        assert_eq!(acs(&circle), Acs::Off);
    }
}
