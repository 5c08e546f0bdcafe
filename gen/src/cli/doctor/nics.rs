//! The NICs, the transports that use them, and how NICs reach the memory of GPUs.

use super::finding::Finding;
use super::gpus::module;
use mkernel_topology::{NicKind, Topology};
use std::fs;
use std::path::Path;

const MEMORY: &str = "gpu memory";

/// The transports between nodes that this program was built with.
pub fn transports(topology: &Topology) -> Finding {
    let check = "transports";
    let all = [
        ("emulated", true),
        ("rc", cfg!(feature = "verbs")),
        ("efa", cfg!(feature = "efa")),
    ];
    let built = all.iter().filter(|(_, is_built)| *is_built);
    let built: Vec<_> = built.map(|(name, _)| *name).collect();
    let built = built.join(", ");
    let needed = match topology.nics.iter().any(|nic| nic.kind == NicKind::Efa) {
        _ if topology.nics.is_empty() => None,
        true => Some(("efa", cfg!(feature = "efa"))),
        false => Some(("verbs", cfg!(feature = "verbs"))),
    };
    match needed {
        Some((feature, false)) => Finding::note(
            check,
            format!("{built}; this mkernel-gen was built without the transport of these NICs"),
            format!("cargo build --release -p mkernel-gen --features {feature}"),
        ),
        _ => Finding::ok(check, built),
    }
}

/// The NICs for RDMA.
pub fn nics(topology: &Topology) -> Finding {
    let check = "nics";
    let shown = topology.nics.iter().map(|nic| {
        let state = if nic.is_up { "" } else { ", down" };
        format!("{} ({}{state})", nic.name, nic.kind)
    });
    let shown: Vec<_> = shown.collect();
    let down: Vec<_> = topology.nics.iter().filter(|nic| !nic.is_up).collect();
    match (shown.is_empty(), down.is_empty()) {
        (true, _) => Finding::ok(check, "none for RDMA; one host needs none"),
        (false, true) => Finding::ok(check, shown.join(", ")),
        (false, false) => {
            let names: Vec<_> = down.iter().map(|nic| &*nic.name).collect();
            let remedy = format!(
                "look at the cable and at `rdma link show`, run `ip link set DEVICE up`, or leave {} out of MKERNEL_NICS",
                names.join(", ")
            );
            Finding::note(check, shown.join(", "), remedy)
        }
    }
}

/// Whether NICs can read and write the memory of GPUs, by dma-buf or by the module nvidia-peermem.
pub fn gpu_memory(topology: &Topology, sys: &Path, proc: &Path) -> Finding {
    if topology.nics.is_empty() || topology.gpus.is_empty() {
        return Finding::ok(MEMORY, "no NIC for RDMA beside a GPU");
    }
    let is_open = module(proc).is_some_and(|version| version.contains("Open Kernel Module"));
    let release = fs::read_to_string(proc.join("sys/kernel/osrelease")).unwrap_or_default();
    if is_open && is_at_least(&release, (5, 12)) {
        return Finding::ok(MEMORY, "NICs reach it by dma-buf");
    }
    if sys.join("module/nvidia_peermem").exists() {
        return Finding::ok(MEMORY, "NICs reach it by nvidia-peermem");
    }
    Finding::fault(
        MEMORY,
        format!(
            "NICs cannot reach it: dma-buf needs NVIDIA's open kernel module and Linux 5.12 or newer (this is {}), and nvidia-peermem is not loaded; pinned memory of the host is used, which is slow",
            release.trim()
        ),
        "apt-get install nvidia-open, or modprobe nvidia-peermem",
    )
}

/// Whether a release such as `5.15.0-91-generic` is at least a version.
fn is_at_least(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release
        .split(['.', '-'])
        .map(|number| number.trim().parse().ok());
    let mut next = || numbers.next().flatten();
    matches!((next(), next()), (Some(major), Some(minor)) if (major, minor) >= version)
}

#[cfg(test)]
mod tests {
    use super::is_at_least;

    #[test]
    fn releases_of_linux() {
        assert!(is_at_least("5.15.0-91-generic\n", (5, 12)));
        assert!(is_at_least("6.1", (5, 12)));
        assert!(!is_at_least("5.4.0", (5, 12)));
        assert!(!is_at_least("", (5, 12)));
    }
}
