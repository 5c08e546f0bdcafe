//! [`Tree`]: builds sysfs trees with the files and links that the crate reads, where the kernel has them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A sysfs root in a temporary folder.
pub struct Tree {
    dir: TempDir,
    /// The CPU list of each NUMA node.
    nodes: Vec<String>,
}

/// The content of an RDMA device's files.
#[derive(Clone, Copy)]
pub struct Card {
    pub pci_id: (u32, u32),
    pub node_type: &'static str,
    pub link_layer: &'static str,
    pub rate: &'static str,
}

pub const CONNECTX7: (u32, u32) = (0x15b3, 0x1021);

/// A ConnectX-7 port on InfiniBand NDR.
pub const NDR: Card = Card {
    pci_id: CONNECTX7,
    node_type: "1: CA",
    link_layer: "InfiniBand",
    rate: "400 Gb/sec (4X NDR)",
};

impl Tree {
    /// Creates a host with the given CPUs of each NUMA node. The second half of each list holds the second threads of the cores
    /// in the first half.
    pub fn new(nodes: &[&str]) -> Self {
        let tree = Self {
            dir: TempDir::new().expect("a temporary folder"),
            nodes: nodes.iter().map(|&list| list.to_owned()).collect(),
        };
        for (number, list) in nodes.iter().enumerate() {
            tree.file(&format!("devices/system/node/node{number}/cpulist"), list);
            let cpus = mkernel_topology::cpu_list(list).expect("a list of CPUs");
            let cores = cpus.len() / 2;
            for i in 0..cores {
                let siblings = format!("{},{}", cpus[i], cpus[i + cores]);
                for cpu in [cpus[i], cpus[i + cores]] {
                    let path = format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
                    tree.file(&path, &siblings);
                }
            }
        }
        tree
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, format!("{text}\n")).expect("written");
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        symlink(target, path).expect("linked");
    }

    /// Adds a PCI function at `pci_path`, such as `pci0000:15/0000:15:01.0/…`. `node` is -1 if the firmware does not state
    /// it.
    pub fn pci(&self, pci_path: &str, node: i32, (vendor, device): (u32, u32), class: u32) {
        let id = pci_path.rsplit('/').next().expect("an address");
        let folder = format!("devices/{pci_path}");
        self.file(&format!("{folder}/vendor"), &format!("{vendor:#06x}"));
        self.file(&format!("{folder}/device"), &format!("{device:#06x}"));
        self.file(&format!("{folder}/class"), &format!("{class:#08x}"));
        self.file(&format!("{folder}/numa_node"), &node.to_string());
        let cpus = usize::try_from(node)
            .map_or_else(|_| self.nodes.join(","), |node| self.nodes[node].clone());
        self.file(&format!("{folder}/local_cpulist"), &cpus);
        self.link(
            &format!("bus/pci/devices/{id}"),
            &format!("../../../devices/{pci_path}"),
        );
    }

    /// Adds a data-centre GPU, which is a 3D controller.
    pub fn gpu(&self, pci_path: &str, node: i32, device: u32) {
        self.pci(pci_path, node, (0x10de, device), 0x03_02_00);
    }

    /// Adds an RDMA device with one active port.
    pub fn nic(&self, name: &str, pci_path: &str, node: i32, card: Card) {
        let class = if card.link_layer == "InfiniBand" {
            0x02_07_00
        } else {
            0x02_00_00
        };
        self.pci(pci_path, node, card.pci_id, class);
        self.rdma(name, pci_path, card);
        let id = pci_path.rsplit('/').next().expect("an address");
        self.link(
            &format!("devices/{pci_path}/infiniband/{name}/device"),
            &format!("../../../{id}"),
        );
    }

    /// Makes the PCI function at `pci_path` a virtual function of the function `physical`.
    pub fn virtual_function(&self, pci_path: &str, physical: &str) {
        self.link(
            &format!("devices/{pci_path}/physfn"),
            &format!("../{physical}"),
        );
    }

    /// Adds a software RDMA device, which belongs to no PCI function.
    pub fn software_nic(&self, name: &str, card: Card) {
        self.rdma(name, "virtual", card);
    }

    fn rdma(&self, name: &str, pci_path: &str, card: Card) {
        let folder = format!("devices/{pci_path}/infiniband/{name}");
        self.file(&format!("{folder}/node_type"), card.node_type);
        let port = format!("{folder}/ports/1");
        self.file(&format!("{port}/state"), "4: ACTIVE");
        self.file(&format!("{port}/link_layer"), card.link_layer);
        self.file(&format!("{port}/rate"), card.rate);
        self.link(
            &format!("class/infiniband/{name}"),
            &format!("../../{folder}"),
        );
    }

    /// Takes the port of an RDMA device down.
    pub fn down(&self, name: &str) {
        self.file(&format!("class/infiniband/{name}/ports/1/state"), "1: DOWN");
    }
}
