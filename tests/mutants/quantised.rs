//! Kernels whose products become e4m3.

use crate::Kernel;
use mkernel::spec::GemmOp::{AgGemm, Gemm};
use mkernel_testing::jobs::gemm::quantised::QuantisedGemmJob;

pub const KERNELS: &[Kernel<QuantisedGemmJob>] = &[("halves", halves), ("shared", shared)];

/// Blocks of which each warpgroup has a half, in three tiles, so that vectors of a line carry magnitudes again.
fn halves() -> QuantisedGemmJob {
    QuantisedGemmJob::new(Gemm, 1, (77, 400, 64), (64, 128), 2)
}

/// Tiles of two blocks, which two CTAs share.
fn shared() -> QuantisedGemmJob {
    QuantisedGemmJob::new(AgGemm, 2, (128, 528, 256), (128, 256), 8).split(2)
}
