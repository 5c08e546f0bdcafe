//! `mkernel-gen topology`. Which NICs serve which GPU is tested in mkernel-topology.

use super::{code, expect_parts, json_lines, run, stderr, stdout, succeeds};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

/// A PCI function at `way`.
fn pci(root: &Path, way: &str, vendor: &str, class: &str) {
    let folder = root.join("devices").join(way);
    fs::create_dir_all(&folder).expect("made");
    for (name, text) in [
        ("vendor", vendor),
        ("device", "0x2330"),
        ("class", class),
        ("numa_node", "0"),
    ] {
        fs::write(folder.join(name), text).expect("written");
    }
    let devices = root.join("bus/pci/devices");
    fs::create_dir_all(&devices).expect("made");
    let id = way.rsplit('/').next().expect("an address");
    symlink(format!("../../../devices/{way}"), devices.join(id)).expect("linked");
}

fn host() -> TempDir {
    let dir = TempDir::new().expect("temporary folder");
    let nic = "pci0000:10/0000:10:01.0/0000:11:00.0";
    pci(
        dir.path(),
        "pci0000:10/0000:10:02.0/0000:12:00.0",
        "0x10de",
        "0x030200",
    );
    pci(dir.path(), nic, "0x15b3", "0x020700");
    let ports = dir.path().join("class/infiniband/mlx5_0/ports/1");
    fs::create_dir_all(&ports).expect("made");
    fs::write(ports.join("state"), "4: ACTIVE").expect("written");
    fs::write(ports.join("rate"), "400 Gb/sec (4X NDR)").expect("written");
    fs::write(ports.join("link_layer"), "InfiniBand").expect("written");
    symlink(
        "../../../bus/pci/devices/0000:11:00.0",
        dir.path().join("class/infiniband/mlx5_0/device"),
    )
    .expect("linked");
    dir
}

#[test]
fn a_tree_is_shown_as_text_and_as_json() {
    let dir = host();
    let sysfs = format!("--sysfs={}", dir.path().display());
    let output = succeeds(&["topology", &sysfs]);
    let choice = "  GPU 0  mlx5_0  at the same host bridge  proxy on any core\n";
    assert!(stdout(&output).contains(choice), "{}", stdout(&output));
    let lines = json_lines(&run(&["--json", "topology", &sysfs]));
    let choice = &lines[0]["choices"]["gpus"][0]["rails"][0];
    assert_eq!(choice["distance"], "host_bridge");
    assert_eq!(
        lines[0]["topology"]["gpus"][0]["place"]["bus_id"],
        "0000:12:00.0"
    );
    assert!(lines[0]["gpu_links"].is_null());
}

#[test]
fn names_that_are_not_there_are_wrong_usage() {
    let dir = host();
    let sysfs = format!("--sysfs={}", dir.path().display());
    let output = run(&["topology", &sysfs, "--nics=mlx5_9"]);
    assert_eq!(code(&output), 2);
    let expected = "there is no NIC \"mlx5_9\"; the NICs of this host are: mlx5_0";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

#[test]
fn any_machine_has_a_topology() {
    let output = succeeds(&["topology"]);
    assert!(stdout(&output).starts_with("GPUs"), "{}", stdout(&output));
    let empty = TempDir::new().expect("temporary folder");
    let sysfs = format!("--sysfs={}", empty.path().display());
    let output = run(&["topology", &sysfs]);
    assert_eq!(stdout(&output), "GPUs: none\nNICs: none\nchoice: none\n");
}

#[test]
fn a_copy_of_sysfs_that_is_absent_is_an_error() {
    let output = run(&["topology", "--sysfs", "/nowhere"]);
    assert_eq!(code(&output), 4, "{}", stderr(&output));
    expect_parts(stderr(&output), &["cannot read /nowhere"]);
}
