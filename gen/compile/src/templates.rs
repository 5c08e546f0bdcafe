//! The embedded headers of kernels, by backend.

use mkernel_spec::Backend;
use mkernel_templates::{DEVICE_HEADERS, SIMULATOR_HEADERS};
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// The headers that kernels may include, as pairs of name and text, sorted by name. For simulated GPUs, files of
/// `templates/simulator` replace device headers of the same name, which are then called `mk/gpu/…`. Headers include
/// only each other and, for simulated GPUs, the C++ standard library.
#[must_use]
pub fn headers(backend: Backend) -> &'static [(&'static str, &'static str)] {
    match backend {
        Backend::Nvrtc => DEVICE_HEADERS,
        Backend::HostCxx => &SIMULATED,
    }
}

static SIMULATED: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    let is_replaced = |name: &str| SIMULATOR_HEADERS.iter().any(|header| header.0 == name);
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

/// The name and text of the device header `name`.
pub(crate) fn header_of(name: &str) -> Option<(&'static str, &'static str)> {
    DEVICE_HEADERS
        .iter()
        .find(|header| header.0 == name)
        .copied()
}

/// Whether a device header is inlined into sources: the simulator neither replaces it nor includes it in a replacement.
pub(crate) fn is_inlined(name: &str) -> bool {
    !NOT_INLINED.contains(name)
}

/// The headers of simulated kernels that sources with inlined headers still include.
pub(crate) fn not_inlined() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let is_replaced = |name: &str| name.starts_with("mk/gpu/");
    let is_needed = move |name: &str| !is_inlined(name) || is_replaced(name);
    headers(Backend::HostCxx)
        .iter()
        .filter(move |header| is_needed(header.0))
}

/// The headers of the simulator, the device headers that they replace, and all headers that any of these includes.
static NOT_INLINED: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
    let replaced = SIMULATOR_HEADERS
        .iter()
        .filter_map(|header| header_of(header.0));
    let mut left: Vec<_> = SIMULATOR_HEADERS.iter().copied().chain(replaced).collect();
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
