//! [`NumaNode`]: the NUMA nodes of a host and their CPUs.

use crate::sysfs::Sysfs;
use serde::Serialize;

/// A limit of CPU numbers, which exceeds the limit of Linux (`CONFIG_NR_CPUS` of distributions is 8192).
const MAX_CPUS: u32 = 1 << 16;

/// A NUMA node that has CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// The number of the node.
    pub number: u32,
    /// The CPUs of the node in ascending order.
    pub cpus: Vec<u32>,
    /// The CPUs of the node that are the first hardware thread of their core.
    pub first_threads: Vec<u32>,
}

/// Parses a list of CPUs such as `0-55,112-167`. Returns `None` if the text is not a list or a number is not possible.
#[must_use]
pub fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
        if cpus.len() > MAX_CPUS as usize {
            return None;
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// Reads the NUMA nodes. Without NUMA support, all CPUs are one node.
pub(crate) fn read(sysfs: &mut Sysfs) -> Vec<NumaNode> {
    let folder = "devices/system/node";
    let mut nodes = Vec::new();
    for name in sysfs.list(folder) {
        let Some(number) = name
            .strip_prefix("node")
            .and_then(|number| number.parse().ok())
        else {
            continue;
        };
        let cpus = sysfs.parsed(&format!("{folder}/{name}/cpulist"), cpu_list);
        nodes.extend(cpus.filter(|cpus| !cpus.is_empty()).map(|cpus| NumaNode {
            number,
            first_threads: first_threads(sysfs, &cpus),
            cpus,
        }));
    }
    if nodes.is_empty() {
        // The kernel has no NUMA support.
        let cpus = sysfs.text("devices/system/cpu/online");
        let cpus = cpus.and_then(|text| cpu_list(&text)).unwrap_or_default();
        nodes.extend((!cpus.is_empty()).then(|| NumaNode {
            number: 0,
            first_threads: first_threads(sysfs, &cpus),
            cpus,
        }));
    }
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// Returns `cpus` without the CPUs that share a core with a lower CPU. A CPU whose core is unknown counts as a core.
fn first_threads(sysfs: &Sysfs, cpus: &[u32]) -> Vec<u32> {
    let is_first = |cpu: &u32| {
        let path = format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let siblings = sysfs.text(&path).and_then(|text| cpu_list(&text));
        siblings.is_none_or(|siblings| siblings.first().is_none_or(|first| first >= cpu))
    };
    cpus.iter().copied().filter(is_first).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("0-2,8,10-11"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!(cpu_list(""), Some(vec![]));
    }

    #[test]
    fn invalid_lists_are_refused_without_large_allocations() {
        for text in ["x", "3-1", "0-4294967295", "1-", "-1", "0x3"] {
            assert_eq!(cpu_list(text), None, "{text}");
        }
        assert_eq!(cpu_list(&"0-65535,".repeat(1000)), None);
    }
}
