//! The constants of headers about the scales of A and B.

use super::assembly::Config;
use mkernel_spec::Scales;

/// The elements of A and B that share scales, if a kernel has scales.
pub(super) fn scales(scales: Scales, c: &mut Config) {
    let (name, note) = match scales {
        Scales::None => return,
        Scales::Tensor => (
            "mk::gemm::Scales::kTensor",
            "all of A, and all of B, has a scale",
        ),
        Scales::Row => (
            "mk::gemm::Scales::kRow",
            "a row of A, and a column of B, has a scale",
        ),
        Scales::Block => (
            "mk::gemm::Scales::kBlock",
            "128 of K have a scale, in a row of A and in 128 columns of B",
        ),
    };
    c.name("kScales", name, note);
}

/// The scales that travel with a row of A, if there are any, and the bytes of such a row.
pub(super) fn sent_scales(scales: u64, row_bytes: u64, c: &mut Config) {
    if scales == 0 {
        return;
    }
    c.u32(
        "kSentScales",
        scales as u32,
        "scales that travel with a row",
    )
    .u32(
        "kSentRowBytes",
        row_bytes as u32,
        "bytes of a row and its scales",
    );
}
