//! The templates and device headers, embedded.

/// Templates by the name under which they include each other.
pub(crate) const TEMPLATES: [(&str, &str); 4] = [
    (
        "kernel.cu.tera",
        include_str!("../../../templates/kernel.cu.tera"),
    ),
    (
        "ops/ag_gemm.cu.tera",
        include_str!("../../../templates/ops/ag_gemm.cu.tera"),
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

/// Device headers by the name under which kernels include them. Plain CUDA; they include nothing but each other.
#[must_use]
pub fn device_headers() -> &'static [(&'static str, &'static str)] {
    &[
        (
            "mk/barrier.cuh",
            include_str!("../../../templates/device/mk/barrier.cuh"),
        ),
        (
            "mk/base.cuh",
            include_str!("../../../templates/device/mk/base.cuh"),
        ),
        (
            "mk/descriptor.cuh",
            include_str!("../../../templates/device/mk/descriptor.cuh"),
        ),
        (
            "mk/memory.cuh",
            include_str!("../../../templates/device/mk/memory.cuh"),
        ),
        (
            "mk/mma.cuh",
            include_str!("../../../templates/device/mk/mma.cuh"),
        ),
        (
            "mk/ring.cuh",
            include_str!("../../../templates/device/mk/ring.cuh"),
        ),
        (
            "mk/tma.cuh",
            include_str!("../../../templates/device/mk/tma.cuh"),
        ),
        (
            "mk/types.cuh",
            include_str!("../../../templates/device/mk/types.cuh"),
        ),
        (
            "mk/watch.cuh",
            include_str!("../../../templates/device/mk/watch.cuh"),
        ),
    ]
}
