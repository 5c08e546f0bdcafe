//! `mkernel-gen doctor`: shows which compilers, caches, drivers and NICs this machine has.

use super::failure::Failure;
use super::format::{bytes, count, table};
use super::output::{print, print_json};
use super::store::cache;
use mkernel_compile::{Env, HostCxx, Nvrtc};
use mkernel_topology::Topology;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The state of this machine.
#[derive(Serialize)]
struct MachineInfo<'a> {
    nvrtc: Option<&'a Path>,
    nvrtc_version: Option<String>,
    cxx: Option<&'a str>,
    cache: Option<&'a Path>,
    cached_kernels: usize,
    cached_bytes: u64,
    bundles: &'a [PathBuf],
    driver: Option<String>,
    /// The transports that this program was built with.
    transports: Vec<&'static str>,
    nics: Vec<String>,
}

/// Prints what was found. The command fails if NVRTC is missing.
pub fn run(json: bool) -> Result<(), Failure> {
    let cache = cache()?;
    let nvrtc = Nvrtc::load();
    let entries = cache.entries();
    let info = MachineInfo {
        nvrtc: nvrtc.as_ref().ok().map(|nvrtc| nvrtc.path()),
        nvrtc_version: nvrtc.as_ref().ok().map(|nvrtc| {
            let (major, minor) = nvrtc.version();
            format!("{major}.{minor}")
        }),
        cxx: HostCxx::load().ok().map(HostCxx::name),
        cache: cache.root(),
        cached_kernels: entries.len(),
        cached_bytes: entries.iter().map(|entry| entry.bytes).sum(),
        bundles: &Env::get().bundles,
        driver: driver(),
        transports: transports(),
        nics: nics(Path::new("/sys")),
    };
    if json {
        print_json(&info)?;
    } else {
        print(&describe(&info))?;
    }
    nvrtc.map(|_| ()).map_err(Failure::Gen)
}

fn describe(info: &MachineInfo) -> String {
    let path = |path: Option<&Path>| path.map_or("none".to_owned(), |p| p.display().to_string());
    let nvrtc = match &info.nvrtc_version {
        Some(version) => format!("{version}, {}", path(info.nvrtc)),
        None => "not found".to_owned(),
    };
    let cxx = info.cxx.unwrap_or("not found; simulated GPUs need one");
    let cxx = cxx.to_owned();
    let cached = format!(
        "{}, {}, {}",
        path(info.cache),
        count(info.cached_kernels, "kernel"),
        bytes(info.cached_bytes)
    );
    let list = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    let bundles = info.bundles.iter();
    let bundles: Vec<_> = bundles.map(|b| b.display().to_string()).collect();
    let driver = info
        .driver
        .clone()
        .unwrap_or_else(|| "not loaded; compiling needs no driver".into());
    let rows = [
        ("nvrtc", nvrtc),
        ("c++", cxx),
        ("cache", cached),
        ("bundles", list(&bundles)),
        ("driver", driver),
        ("network", info.transports.join(", ")),
        ("nics", list(&info.nics)),
    ];
    table(&rows.map(|(name, value)| vec![name.to_owned(), value]), &[])
}

/// The transports between nodes that this program was built with.
fn transports() -> Vec<&'static str> {
    let all = [
        ("emulated", true),
        ("rc", cfg!(feature = "verbs")),
        ("efa", cfg!(feature = "efa")),
    ];
    let built = all.into_iter().filter(|(_, is_built)| *is_built);
    built.map(|(name, _)| name).collect()
}

/// The NICs of the machine with this sysfs, each with its kind.
fn nics(sysfs: &Path) -> Vec<String> {
    let topology = Topology::read(sysfs);
    let nics = topology.nics.iter();
    nics.map(|nic| {
        let state = if nic.is_up { "" } else { ", down" };
        format!("{} ({}{state})", nic.name, nic.kind)
    })
    .collect()
}

/// The version of NVIDIA's kernel module, if it is loaded.
fn driver() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    Some(
        text.lines()
            .next()?
            .trim_start_matches("NVRM version:")
            .trim()
            .to_owned(),
    )
}
