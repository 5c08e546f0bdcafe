//! A topology and its NIC selection as text, for `mkernel-gen topology`.

use crate::nic::Nic;
use crate::nic_selection::{GpuNics, NicSelection, Rail};
use crate::pci::{BusId, PciLocation};
use crate::topology::Topology;
use serde::Serialize;
use std::fmt::Write;

/// The way in which two GPUs access each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuLink {
    /// Over NVLink.
    NvLink,
    /// Over PCIe.
    Pcie,
    /// The GPUs cannot access each other's memory.
    None,
}

/// The links between pairs of GPUs, as reported by a driver. sysfs does not list these links.
pub type GpuLinks = Vec<(BusId, BusId, GpuLink)>;

/// Describes GPUs, the links between them if they are known, NICs, the selection with its reasons, and warnings.
#[must_use]
pub fn describe(topology: &Topology, selection: &NicSelection, links: Option<&GpuLinks>) -> String {
    let mut text = String::new();
    if topology.gpus.is_empty() {
        text.push_str("GPUs: none\n");
    } else {
        text.push_str("GPUs, by PCI bus id\n");
        let rows = (topology.gpus.iter().enumerate()).map(|(index, gpu)| {
            let bus_id = gpu.location.bus_id.to_string();
            let id = gpu.pci_id.clone();
            vec![format!("{index}"), bus_id, id, node(Some(&gpu.location))]
        });
        text.push_str(&table(rows.collect()));
        let links = links.map_or_else(
            || "unknown".to_owned(),
            |links| describe_links(topology, links),
        );
        let _ = writeln!(text, "links between GPUs: {links}");
    }
    if topology.nics.is_empty() {
        text.push_str("NICs: none\n");
    } else {
        text.push_str("NICs\n");
        text.push_str(&table(topology.nics.iter().map(nic).collect()));
    }
    text.push_str(&describe_selection(topology, selection));
    for note in topology.notes.iter().chain(&selection.notes) {
        let _ = writeln!(text, "warning: {note}");
    }
    text
}

/// Describes the selected NICs.
fn describe_selection(topology: &Topology, selection: &NicSelection) -> String {
    let Some(kind) = selection.kind.filter(|_| !selection.gpus.is_empty()) else {
        return "choice: none\n".to_owned();
    };
    let mut rows = Vec::new();
    for gpu in &selection.gpus {
        let lines = gpu.rails.iter().enumerate();
        rows.extend(lines.map(|(i, rail)| row(topology, gpu, i, rail)));
    }
    format!("choice: {kind}\n{}", table(rows))
}

/// Returns the row of one rail of a GPU.
fn row(topology: &Topology, selected: &GpuNics, i: usize, rail: &Rail) -> Vec<String> {
    let mut why = rail.distance.to_string();
    if rail.is_configured {
        why.push_str(", as configured");
    }
    if !rail.shared_with.is_empty() {
        let others: Vec<String> = rail.shared_with.iter().map(usize::to_string).collect();
        let _ = write!(why, ", shared with GPU {}", others.join(", "));
    }
    let (gpu, cores) = if i == 0 {
        let cores = match selected.cores.as_slice() {
            [] => "proxy on any core".to_owned(),
            cores => format!("proxy on cores {}", ranges(cores)),
        };
        (format!("GPU {}", selected.gpu), cores)
    } else {
        (String::new(), String::new())
    };
    vec![gpu, topology.nics[rail.nic].name.clone(), why, cores]
}

/// Returns the row of a NIC.
fn nic(nic: &Nic) -> Vec<String> {
    let location = nic.location.as_ref();
    let bus_id = location.map_or("in software".to_owned(), |location| {
        location.bus_id.to_string()
    });
    let rate = nic.rate_mbps.map_or("unknown rate".to_owned(), |mbps| {
        format!("{} Gb/s", mbps as f64 / 1000.0)
    });
    let state = if nic.is_up { "up" } else { "down" };
    vec![
        nic.name.clone(),
        bus_id,
        nic.kind.to_string(),
        rate,
        node(location),
        state.to_owned(),
    ]
}

fn node(location: Option<&PciLocation>) -> String {
    match location.and_then(|location| location.numa_node) {
        Some(node) => format!("NUMA node {node}"),
        None => "NUMA node unknown".to_owned(),
    }
}

/// Returns `NVLink between all`, or the pairs of each kind of link.
fn describe_links(topology: &Topology, links: &GpuLinks) -> String {
    let name = |link| match link {
        GpuLink::NvLink => "NVLink",
        GpuLink::Pcie => "PCIe",
        GpuLink::None => "none",
    };
    let Some((_, _, first)) = links.first() else {
        return "unknown".to_owned();
    };
    let gpus = topology.gpus.len();
    if links.len() == gpus * gpus.saturating_sub(1) / 2 && links.iter().all(|l| l.2 == *first) {
        return format!("{} between all", name(*first));
    }
    let index = |id: BusId| {
        topology
            .gpu_at(id)
            .map_or(id.to_string(), |i| i.to_string())
    };
    let pairs = links
        .iter()
        .map(|(a, b, link)| format!("{}-{} {}", index(*a), index(*b), name(*link)));
    pairs.collect::<Vec<_>>().join(", ")
}

/// Formats numbers such as `0-3, 8`.
fn ranges(sorted: &[u32]) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for &cpu in sorted {
        match spans.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(cpu) => *last = cpu,
            _ => spans.push((cpu, cpu)),
        }
    }
    let spans = spans.iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    spans.collect::<Vec<_>>().join(", ")
}

/// Formats rows in columns that are as wide as their widest cell.
fn table(rows: Vec<Vec<String>>) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or(0))
        .map(width)
        .collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("  {cell:<width$}", width = *width));
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}
