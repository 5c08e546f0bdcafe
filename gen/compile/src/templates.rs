//! The templates and the headers of kernels, embedded.

use mkernel_spec::Target;
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
