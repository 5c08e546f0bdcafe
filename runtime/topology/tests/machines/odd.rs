//! Sysfs trees that no kernel would create. Such trees lead to notes, and never to a panic.

use super::{hosts, rails};
use crate::tree::{NDR, Tree};
use mkernel_topology::{Topology, describe};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};
use tempfile::TempDir;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_symlink() || path.is_file() {
            found.push(path);
        } else {
            files(&path, found);
        }
    }
}

/// Reads a tree, selects NICs and prints the report.
fn read_and_describe(tree: &Tree) -> String {
    let topology = Topology::read(tree.root());
    let selection = topology.select_nics("").expect("nothing is configured");
    visit(&topology);
    describe(&topology, &selection, None)
}

/// Computes the distances of all NICs from all GPUs, and the cores near all NICs.
fn visit(topology: &Topology) {
    for nic in &topology.nics {
        let _ = topology.cores_near(nic);
        for gpu in &topology.gpus {
            let _ = topology.distance(gpu, nic).to_string();
        }
    }
}

/// The small host with a second NIC, and with few cores so that the tree is built quickly.
fn pair() -> Tree {
    let tree = hosts::small_with("0-3");
    tree.nic("mlx5_9", "pci0000:40/0000:40:02.1/0000:42:00.0", 0, NDR);
    tree
}

/// All cases share one tree, because building it would take most of the time.
static SHARED: LazyLock<Mutex<Tree>> = LazyLock::new(|| Mutex::new(pair()));

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// A file may hold anything, a link may lead anywhere, and a folder may be in the place of a file.
    #[test]
    fn no_content_causes_a_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), 0..4, "\\PC{0,20}|[0-9a-fx:,. -]{0,24}"), 1..6)
    ) {
        let tree = SHARED.lock().expect("no case panicked");
        let mut all = Vec::new();
        files(tree.root(), &mut all);
        all.sort();
        // The damages are undone in reverse order, so that a file which was damaged twice is restored.
        let kept = TempDir::new().expect("a temporary folder");
        for (i, (which, how, text)) in damage.iter().enumerate() {
            let path = which.get(&all);
            fs::rename(path, kept.path().join(i.to_string())).expect("the NIC exists");
            match how {
                0 | 1 => drop(fs::write(path, text)),
                2 if !text.is_empty() && !text.contains('\0') => drop(symlink(text, path)),
                _ => drop(fs::create_dir(path)),
            }
        }
        read_and_describe(&tree);
        for (i, (which, _, _)) in damage.iter().enumerate().rev() {
            let path = which.get(&all);
            if fs::remove_file(path).is_err() {
                fs::remove_dir(path).expect("an empty folder");
            }
            fs::rename(kept.path().join(i.to_string()), path).expect("the original file is restored");
        }
    }
}

#[test]
fn odd_files_are_noted_with_their_path() {
    let tree = pair();
    tree.file("class/infiniband/mlx5_9/ports/1/state", "up and running");
    tree.file(
        "devices/pci0000:c0/0000:c0:01.1/0000:c1:00.0/numa_node",
        "second",
    );
    fs::remove_file(tree.path("devices/pci0000:00/0000:00:01.1/0000:01:00.0/class"))
        .expect("removed");
    fs::create_dir_all(tree.path("bus/pci/devices/usb1")).expect("created");
    let text = read_and_describe(&tree);
    for note in [
        "class/infiniband/mlx5_9/ports/1/state: \"up and running\" is not understood",
        "bus/pci/devices/0000:c1:00.0/numa_node: \"second\" is not understood",
        "bus/pci/devices/0000:01:00.0/class: cannot be read",
        "bus/pci/devices/usb1: not a PCI bus id, skipped",
    ] {
        assert!(
            text.contains(&format!("warning: {note}\n")),
            "{note}\n{text}"
        );
    }
    let topology = Topology::read(tree.root());
    assert_eq!(topology.gpus.len(), 1, "the other one has no class");
    let selection = topology.select_nics("").expect("nothing is configured");
    assert_eq!(rails(&topology, &selection), [["rocep65s0"]]);
}

#[test]
fn long_files_and_links_in_a_loop_are_skipped() {
    let tree = pair();
    tree.file("devices/system/node/node0/cpulist", &"0-1,".repeat(10_000));
    let rate = tree.path("class/infiniband/mlx5_9/ports/1/rate");
    fs::remove_file(&rate).expect("removed");
    // The link points to itself.
    symlink("rate", &rate).expect("linked");
    let text = read_and_describe(&tree);
    assert!(
        text.contains("devices/system/node/node0/cpulist: cannot be read"),
        "{text}"
    );
    assert!(text.contains("unknown rate"), "{text}");
}

/// iWARP devices have Ethernet links too, but cannot exchange data with RoCE devices.
#[test]
fn other_rdma_devices_are_left_out() {
    let tree = hosts::small();
    let iwarp = crate::tree::Card {
        node_type: "4: RNIC",
        ..hosts::ETHERNET
    };
    tree.nic("iwp1", "pci0000:40/0000:40:02.1/0000:42:00.0", 0, iwarp);
    let text = read_and_describe(&tree);
    assert!(
        text.contains("warning: iwp1 is left out: neither InfiniBand, RoCE nor EFA"),
        "{text}"
    );
    assert!(!text.contains("  iwp1"), "{text}");
}
