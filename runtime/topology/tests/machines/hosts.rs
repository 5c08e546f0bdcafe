//! Machine types, built from public information. Properties that are not public are marked as modelled.

use super::tree::{CONNECTX7, Card, NDR, Tree};

pub const H100: u32 = 0x2330;
pub const H200: u32 = 0x2335;

/// A ConnectX-7 port on 400 Gb/s Ethernet.
pub const ETHERNET: Card = Card {
    link_layer: "Ethernet",
    ..NDR
};

/// NVIDIA DGX H100 and H200.
///
/// The source is the "NVIDIA DGX H100/H200 User Guide", docs.nvidia.com/dgx/dgxh100-user-guide, table "Network
/// Modules". There mlx5_0 is ibp24s0 (bus 0x18) and belongs to GPU 0, mlx5_3 is ibp64s0 and belongs to GPU 1, and so
/// on up to mlx5_11, which is ibp220s0 and belongs to GPU 7. The host has two CPUs of 56 cores. The bus ids of the
/// GPUs (1B, 43, 52, 61, 9D, C3, D1, DF) are from nvidia-smi outputs of DGX H100 that users published. NVIDIA's block
/// diagram shows that a ConnectX-7 has the PCIe switch above its GPU. Modelled are the ports of that switch, and the
/// location and the link of the two dual-port storage adapters (mlx5_1, 2, 7, 8).
pub fn dgx(gpu: u32, storage: Card) -> Tree {
    let tree = Tree::new(&["0-55,112-167", "56-111,168-223"]);
    let modules = [
        (0x18, 0, 0),
        (0x40, 3, 0),
        (0x4f, 4, 0),
        (0x5e, 5, 0),
        (0x9a, 6, 1),
        (0xc0, 9, 1),
        (0xce, 10, 1),
        (0xdc, 11, 1),
    ];
    for (bus, number, node) in modules {
        let (root, up, down) = (bus - 3, bus - 2, bus - 1);
        let switch = format!("pci0000:{root:02x}/0000:{root:02x}:01.0/0000:{up:02x}:00.0");
        let nic = format!("{switch}/0000:{down:02x}:00.0/0000:{bus:02x}:00.0");
        tree.nic(&format!("mlx5_{number}"), &nic, node, NDR);
        let gpu_bus = bus + 3;
        let way = format!("{switch}/0000:{down:02x}:02.0/0000:{gpu_bus:02x}:00.0");
        tree.gpu(&way, node, gpu);
    }
    for (bus, node, numbers) in [(0x29, 0, [1, 2]), (0xaa, 1, [7, 8])] {
        for (function, number) in numbers.into_iter().enumerate() {
            let root = bus - 3;
            let way =
                format!("pci0000:{root:02x}/0000:{root:02x}:01.0/0000:{bus:02x}:00.{function}");
            tree.nic(&format!("mlx5_{number}"), &way, node, storage);
        }
    }
    // An NVSwitch is an NVIDIA device too, but not a GPU.
    tree.pci(
        "pci0000:00/0000:00:1c.0/0000:05:00.0",
        0,
        (0x10de, 0x22a3),
        0x06_80_00,
    );
    tree
}

fn efa(rate: &'static str) -> Card {
    Card {
        pci_id: (0x1d0f, 0xefa2),
        node_type: "7: unspecified",
        link_layer: "Unknown",
        rate,
    }
}

/// Builds an AWS host. Below each root port is a switch, and below its ports are EFA devices and then GPUs, on buses
/// without a gap. `roots` holds the bus of the root port, the first bus with an EFA device, and the NUMA node.
fn aws(gpu: u32, efas: u32, gpus: u32, rate: &'static str, roots: &[(u32, u32, i32)]) -> Tree {
    let tree = Tree::new(&["0-47,96-143", "48-95,144-191"]);
    for &(root, first, node) in roots {
        let (up, down) = (root + 1, root + 2);
        let way = |bus: u32| {
            let port = bus - down - 1;
            format!(
                "pci0000:{root:02x}/0000:{root:02x}:00.0/0000:{up:02x}:00.0/0000:{down:02x}:{:02x}.{}/0000:{bus:02x}:00.0",
                port / 8,
                port % 8
            )
        };
        for bus in first..first + efas {
            tree.nic(&format!("rdmap{bus}s0"), &way(bus), node, efa(rate));
        }
        for bus in first + efas..first + efas + gpus {
            tree.gpu(&way(bus), node, gpu);
        }
    }
    tree
}

/// AWS p5.48xlarge.
///
/// The source is github.com/aws/aws-ofi-nccl, topology/p5.48xl-topo.xml: 32 EFA devices of 100 Gb/s, four beside each
/// GPU, rdmap79s0 to rdmap201s0. The bus ids of the GPUs (53, 64, 75, …, CA) are from the nvidia-smi output in
/// Modal's GPU glossary (modal.com/gpu-glossary). The NUMA nodes are modelled. Root ports and switches are modelled after
/// p5en.
pub fn p5() -> Tree {
    let roots: Vec<_> = (0..8)
        .map(|i| (0x44 + 0x11 * i, 0x4f + 0x11 * i, i32::from(i >= 4)))
        .collect();
    aws(H100, 4, 1, "100 Gb/sec (4X EDR)", &roots)
}

/// AWS p5en.48xlarge.
///
/// The source is github.com/aws/aws-ofi-nccl, tests/unit/fixtures/topology/p5en/topology.xml (hwloc). Root ports are
/// at 44:00.0 and so on. EFA devices are at 55 to 58, 6e to 71, 87 to 8a, and a0 to a3, each four behind one switch
/// with GPUs. Two nodes have the CPUs 0-47,96-143 and 48-95,144-191. The GPUs at 59, 5a, 72, 73, 8b, 8c, a4 and a5
/// are from nvidia-smi outputs that users published.
pub fn p5en() -> Tree {
    let roots = [
        (0x44, 0x55, 0),
        (0x5d, 0x6e, 0),
        (0x76, 0x87, 1),
        (0x8f, 0xa0, 1),
    ];
    aws(H200, 4, 2, "200 Gb/sec (4X HDR)", &roots)
}

/// A host with one CPU, two GPUs at separate root ports, and one RoCE adapter. The whole host is modelled.
pub fn small() -> Tree {
    small_with("0-31,32-63")
}

pub fn small_with(cpus: &str) -> Tree {
    let tree = Tree::new(&[cpus]);
    tree.gpu("pci0000:00/0000:00:01.1/0000:01:00.0", -1, H100);
    tree.gpu("pci0000:c0/0000:c0:01.1/0000:c1:00.0", -1, H100);
    let card = Card {
        pci_id: CONNECTX7,
        rate: "100 Gb/sec (4X EDR)",
        ..ETHERNET
    };
    tree.nic(
        "rocep65s0",
        "pci0000:40/0000:40:01.1/0000:41:00.0",
        -1,
        card,
    );
    tree
}
