//! The templates and the headers of kernels, embedded.

use mkernel_spec::Target;

/// Templates by the name under which they include each other.
pub(crate) const TEMPLATES: [(&str, &str); 36] = [
    (
        "fabric_test.cu.tera",
        include_str!("../../../templates/fabric_test.cu.tera"),
    ),
    (
        "kernel.cu.tera",
        include_str!("../../../templates/kernel.cu.tera"),
    ),
    (
        "ops/ag_gemm.cu.tera",
        include_str!("../../../templates/ops/ag_gemm.cu.tera"),
    ),
    (
        "ops/gemm_rs.cu.tera",
        include_str!("../../../templates/ops/gemm_rs.cu.tera"),
    ),
    (
        "ops/gemm_ar.cu.tera",
        include_str!("../../../templates/ops/gemm_ar.cu.tera"),
    ),
    (
        "parts/tile.cu.tera",
        include_str!("../../../templates/parts/tile.cu.tera"),
    ),
    (
        "ops/ring_attention.cu.tera",
        include_str!("../../../templates/ops/ring_attention.cu.tera"),
    ),
    (
        "parts/attention.cu.tera",
        include_str!("../../../templates/parts/attention.cu.tera"),
    ),
    (
        "parts/advance_epoch.cu.tera",
        include_str!("../../../templates/parts/advance_epoch.cu.tera"),
    ),
    (
        "parts/take_tile.cu.tera",
        include_str!("../../../templates/parts/take_tile.cu.tera"),
    ),
    (
        "parts/network.cu.tera",
        include_str!("../../../templates/parts/network.cu.tera"),
    ),
    (
        "parts/node_sums.cu.tera",
        include_str!("../../../templates/parts/node_sums.cu.tera"),
    ),
    (
        "parts/put_sums.cu.tera",
        include_str!("../../../templates/parts/put_sums.cu.tera"),
    ),
    (
        "parts/push_keys.cu.tera",
        include_str!("../../../templates/parts/push_keys.cu.tera"),
    ),
    (
        "parts/put_keys.cu.tera",
        include_str!("../../../templates/parts/put_keys.cu.tera"),
    ),
    (
        "parts/relay.cu.tera",
        include_str!("../../../templates/parts/relay.cu.tera"),
    ),
    (
        "parts/destinations.cu.tera",
        include_str!("../../../templates/parts/destinations.cu.tera"),
    ),
    (
        "parts/packets.cu.tera",
        include_str!("../../../templates/parts/packets.cu.tera"),
    ),
    (
        "parts/tokens_across.cu.tera",
        include_str!("../../../templates/parts/tokens_across.cu.tera"),
    ),
    (
        "ops/dispatch_gemm.cu.tera",
        include_str!("../../../templates/ops/dispatch_gemm.cu.tera"),
    ),
    (
        "ops/combine.cu.tera",
        include_str!("../../../templates/ops/combine.cu.tera"),
    ),
    (
        "parts/choices.cu.tera",
        include_str!("../../../templates/parts/choices.cu.tera"),
    ),
    (
        "parts/told.cu.tera",
        include_str!("../../../templates/parts/told.cu.tera"),
    ),
    (
        "parts/choices_across.cu.tera",
        include_str!("../../../templates/parts/choices_across.cu.tera"),
    ),
    (
        "parts/sums.cu.tera",
        include_str!("../../../templates/parts/sums.cu.tera"),
    ),
    (
        "parts/routing.cu.tera",
        include_str!("../../../templates/parts/routing.cu.tera"),
    ),
    (
        "parts/grouped.cu.tera",
        include_str!("../../../templates/parts/grouped.cu.tera"),
    ),
    (
        "parts/place.cu.tera",
        include_str!("../../../templates/parts/place.cu.tera"),
    ),
    (
        "parts/rounds.cu.tera",
        include_str!("../../../templates/parts/rounds.cu.tera"),
    ),
    (
        "parts/partials.cu.tera",
        include_str!("../../../templates/parts/partials.cu.tera"),
    ),
    (
        "parts/reduce.cu.tera",
        include_str!("../../../templates/parts/reduce.cu.tera"),
    ),
    (
        "parts/exchange.cu.tera",
        include_str!("../../../templates/parts/exchange.cu.tera"),
    ),
    (
        "parts/collect.cu.tera",
        include_str!("../../../templates/parts/collect.cu.tera"),
    ),
    (
        "parts/epilogue.cu.tera",
        include_str!("../../../templates/parts/epilogue.cu.tera"),
    ),
    (
        "parts/gemm.cu.tera",
        include_str!("../../../templates/parts/gemm.cu.tera"),
    ),
    (
        "parts/entry.cu.tera",
        include_str!("../../../templates/parts/entry.cu.tera"),
    ),
];

/// What kernels may include, by the name under which they do. For GPUs: plain CUDA. For simulated GPUs: C++ with the
/// same names in it. They include nothing but each other (and on the host, the C++ library).
#[must_use]
pub fn headers(target: Target) -> &'static [(&'static str, &'static str)] {
    match target {
        Target::Sm90a => &DEVICE_HEADERS,
        Target::Simulator => &SIMULATOR_HEADERS,
    }
}

/// A file of `templates/FOLDER/mk`, by the name under which kernels include it.
macro_rules! header {
    ($folder:literal, $file:literal) => {
        header!($folder, $file, $file)
    };
    ($folder:literal, $file:literal, $name:literal) => {
        (
            concat!("mk/", $name, ".cuh"),
            include_str!(concat!(
                "../../../templates/",
                $folder,
                "/mk/",
                $file,
                ".cuh"
            )),
        )
    };
}

const DEVICE_HEADERS: [(&str, &str); 14] = [
    header!("device", "activation"),
    header!("device", "barrier"),
    header!("device", "base"),
    header!("device", "cluster"),
    header!("device", "copy"),
    header!("device", "descriptor"),
    header!("device", "fabric"),
    header!("device", "memory"),
    header!("device", "mma"),
    header!("device", "quad"),
    header!("device", "ring"),
    header!("device", "tma"),
    header!("device", "types"),
    header!("device", "watch"),
];

const SIMULATOR_HEADERS: [(&str, &str); 16] = [
    header!("simulator", "barrier"),
    header!("simulator", "base"),
    header!("simulator", "calls"),
    header!("simulator", "cluster"),
    header!("simulator", "copy"),
    header!("simulator", "memory"),
    header!("simulator", "mma"),
    header!("simulator", "tma"),
    header!("simulator", "watch"),
    // What the GPU's own headers and these have in common.
    header!("device", "activation"),
    header!("device", "descriptor"),
    header!("device", "fabric"),
    header!("device", "quad"),
    header!("device", "ring"),
    header!("device", "types"),
    header!("device", "watch", "gpu/watch"),
];
