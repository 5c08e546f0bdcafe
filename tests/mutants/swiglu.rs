//! Kernels of SwiGLU in GEMMs: the columns of B, the pairs of sums, and the operands that are added.

use crate::{Kernel, job};
use mkernel::spec::{BLayout, Dtype, Epilogue, GemmOp, GemmShape, Scales, Tuning};
use mkernel_testing::jobs::GemmJob;

pub const KERNELS: &[Kernel] = &[
    ("swiglu", gathered),
    ("swiglu_kn", shared),
    ("swiglu_cluster", cluster),
    ("swiglu_blocks", blocks),
];

fn swiglu() -> Epilogue {
    Epilogue {
        swiglu: true,
        ..Epilogue::default()
    }
}

fn tuning(tile: (u32, u32), split_k: u32, cluster: bool) -> Tuning {
    Tuning {
        tile_m: Some(tile.0),
        tile_n: Some(tile.1),
        split_k: Some(split_k),
        cluster: Some(cluster),
        ..Tuning::default()
    }
}

/// Each warpgroup has separate columns. The last tile reaches beyond C, and beyond the gate's columns of B.
fn gathered() -> GemmJob {
    let (m, n, k) = (72, 136, 128);
    let epilogue = Epilogue {
        bias: true,
        residual: true,
        ..swiglu()
    };
    let tuning = Tuning {
        cluster: None,
        ..tuning((64, 256), 1, false)
    };
    let kernel = (GemmOp::AgGemm, epilogue, tuning);
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 4)
}

/// Two CTAs share each tile, and complete a sub-tile of C each. B is [K,N].
fn shared() -> GemmJob {
    let (m, n, k) = (100, 264, 512);
    let kernel = (GemmOp::Gemm, swiglu(), tuning((128, 256), 2, false));
    job(kernel, 1, GemmShape { m, n, k }, BLayout::Kn, 6)
}

/// Three CTAs share eight blocks of columns of C, of e4m3 with scales of rows.
fn cluster() -> GemmJob {
    let (m, n, k) = (40, 136, 1024);
    let kernel = (GemmOp::Gemm, swiglu(), tuning((64, 256), 3, true));
    let mut job = job(kernel, 1, GemmShape { m, n, k }, BLayout::Nk, 6);
    (job.config.dtype, job.config.scales) = (Dtype::E4m3, Scales::Row);
    job
}

/// The first block of up lies inside a block of 128 columns of B.
fn blocks() -> GemmJob {
    let (m, n, k) = (72, 200, 400);
    let kernel = (GemmOp::Gemm, swiglu(), tuning((128, 256), 1, false));
    let mut job = job(kernel, 1, GemmShape { m, n, k }, BLayout::Nk, 4);
    (job.config.dtype, job.config.scales) = (Dtype::E4m3, Scales::Block);
    job
}
