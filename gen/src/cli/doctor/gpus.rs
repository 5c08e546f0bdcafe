//! The GPUs: their driver, and the links between them.

use super::finding::Finding;
use crate::cli::failure::chain;
use crate::cli::format::count;
use mkernel_topology::{GpuLink, Topology};
use std::fs;
use std::path::Path;

const DRIVER: &str = "driver";
const LINKS: &str = "gpu links";

/// NVIDIA's kernel module.
pub fn driver(topology: &Topology, proc: &Path) -> Finding {
    let gpus = count(topology.gpus.len(), "GPU");
    match (module(proc), topology.gpus.is_empty()) {
        (Some(version), _) => Finding::ok(DRIVER, format!("{version}, {gpus}")),
        (None, true) => Finding::ok(
            DRIVER,
            "not loaded; this host has no GPU, and compiling and simulated GPUs need no driver",
        ),
        (None, false) => Finding::fault(
            DRIVER,
            format!("not loaded, although this host has {gpus}"),
            "modprobe nvidia; if there is no such module, apt-get install nvidia-open (580 or newer)",
        ),
    }
}

/// The version of the kernel module, if it is loaded.
pub fn module(proc: &Path) -> Option<String> {
    let text = fs::read_to_string(proc.join("driver/nvidia/version")).ok()?;
    let line = text.lines().next()?;
    Some(line.trim_start_matches("NVRM version:").trim().to_owned())
}

/// NVLink and peer access between all pairs of GPUs.
pub fn links(topology: &Topology) -> Finding {
    if topology.gpus.len() < 2 {
        return Finding::ok(
            LINKS,
            format!("{}, which need none", count(topology.gpus.len(), "GPU")),
        );
    }
    match mkernel::network::gpu_links() {
        Ok(links) => of_links(&links.iter().map(|(_, _, link)| *link).collect::<Vec<_>>()),
        Err(error) => Finding::fault(
            LINKS,
            chain(&error),
            "install NVIDIA's driver 580 or newer, and unset CUDA_VISIBLE_DEVICES and MKERNEL_DEVICE",
        ),
    }
}

fn of_links(links: &[GpuLink]) -> Finding {
    let with = |wanted| links.iter().filter(|link| **link == wanted).count();
    let (nvlink, pcie, none) = (
        with(GpuLink::NvLink),
        with(GpuLink::Pcie),
        with(GpuLink::None),
    );
    let found = format!(
        "{} of GPUs: {nvlink} with NVLink, {pcie} with PCIe, {none} without access",
        count(links.len(), "pair")
    );
    match nvlink == links.len() {
        true => Finding::ok(LINKS, found),
        false => Finding::fault(
            LINKS,
            format!("{found}; operators need NVLink between all GPUs of a node"),
            "systemctl restart nvidia-fabricmanager, then look at `nvidia-smi topo -m`; or choose GPUs with NVLink by CUDA_VISIBLE_DEVICES",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::finding::State;

    #[test]
    fn all_pairs_of_gpus_need_nvlink() {
        let fine = of_links(&[GpuLink::NvLink, GpuLink::NvLink]);
        assert_eq!(fine.state(), State::Ok);
        let text = of_links(&[GpuLink::NvLink, GpuLink::Pcie, GpuLink::None]).text();
        let text = anstream::adapter::strip_str(&text).to_string();
        assert!(
            text.starts_with("FAULT  gpu links   3 pairs of GPUs: 1 with NVLink, 1 with"),
            "{text}"
        );
        assert!(
            text.contains("remedy: systemctl restart nvidia-fabricmanager"),
            "{text}"
        );
    }

    #[test]
    fn a_driver_is_needed_where_there_are_gpus() {
        let proc = tempfile::tempdir().expect("temporary folder");
        let none = Topology::read(&proc.path().join("absent"));
        assert_eq!(driver(&none, proc.path()).state(), State::Ok);
        fs::create_dir_all(proc.path().join("driver/nvidia")).expect("a folder");
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module  580.1\nGCC version: 12\n";
        fs::write(proc.path().join("driver/nvidia/version"), version).expect("a file");
        let text = driver(&none, proc.path()).text();
        assert!(
            text.contains("NVIDIA UNIX Open Kernel Module  580.1, 0 GPUs"),
            "{text}"
        );
    }
}
