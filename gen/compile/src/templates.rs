//! The templates and the headers of kernels, embedded.

use mkernel_spec::Target;
use std::collections::BTreeSet;
use std::sync::LazyLock;

include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// Templates by the name under which they include each other.
pub(crate) fn templates() -> Vec<(&'static str, &'static str)> {
    TEMPLATES.to_vec()
}

/// What kernels may include, by the name under which they do, sorted. For GPUs: plain CUDA. For simulated GPUs: the same
/// files, but those of `templates/simulator` take the place of their namesakes, which they may include as `mk/gpu/…`.
/// Headers include nothing but each other (and on the host, the C++ library).
#[must_use]
pub fn headers(target: Target) -> &'static [(&'static str, &'static str)] {
    match target {
        Target::Sm90a => DEVICE_HEADERS,
        Target::Simulator => &SIMULATED,
    }
}

static SIMULATED: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    let is_replaced = |name: &str| SIMULATOR_HEADERS.iter().any(|twin| twin.0 == name);
    let shared = DEVICE_HEADERS.iter().map(|&(name, text)| {
        if is_replaced(name) {
            let name = name.replacen("mk/", "mk/gpu/", 1);
            (&*name.leak(), text)
        } else {
            (name, text)
        }
    });
    let mut all: Vec<_> = SIMULATOR_HEADERS.iter().copied().chain(shared).collect();
    all.sort_unstable();
    all
});

/// A device header by its name, with its text.
pub(crate) fn header_of(name: &str) -> Option<(&'static str, &'static str)> {
    DEVICE_HEADERS
        .iter()
        .find(|header| header.0 == name)
        .copied()
}

/// Whether a device header is made of primitives: the simulator has no file in its place, and no such file includes it.
pub(crate) fn is_beside_primitives(name: &str) -> bool {
    !OF_PRIMITIVES.contains(name)
}

/// The simulator's files, their namesakes for GPUs, and all that any of them includes.
static OF_PRIMITIVES: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
    let namesakes = SIMULATOR_HEADERS
        .iter()
        .filter_map(|twin| header_of(twin.0));
    let mut left: Vec<_> = SIMULATOR_HEADERS.iter().copied().chain(namesakes).collect();
    let mut found: BTreeSet<_> = left.iter().map(|header| header.0).collect();
    while let Some((_, text)) = left.pop() {
        let headers = text.lines().filter_map(included).filter_map(header_of);
        left.extend(headers.filter(|header| found.insert(header.0)));
    }
    found
});

/// The header that a line of a kernel or header includes, such as `mk/pipeline.cuh`.
pub(crate) fn included(line: &str) -> Option<&str> {
    line.strip_prefix("#include <")?.strip_suffix('>')
}
