//! Kernels of the main loop of e4m3 and of scales.

use crate::{Kernel, job};
use mkernel::spec::{BLayout, Epilogue, GemmOp, GemmShape, Scales, Tuning};
use mkernel_testing::jobs::GemmJob;

pub const KERNELS: &[Kernel] = &[
    ("blocks", blocks),
    ("rows", rows),
    ("tensors", tensors),
    ("sent by all", sent_by_all),
    ("sent by a CTA", sent_by_a_cta),
];

fn scaled(
    scales: Scales,
    (op, world): (GemmOp, u32),
    (m, n, k): (u64, u64, u64),
    tile: (u32, u32),
) -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(tile.0),
        tile_n: Some(tile.1),
        split_k: Some(1),
        ..Tuning::default()
    };
    let kernel = (op, Epilogue::default(), tuning);
    job(kernel, world, GemmShape { m, n, k }, BLayout::Nk, 4).scaled(scales)
}

/// More stages than one window of scales covers, two parts of columns, and rows and columns that end inside a tile.
fn blocks() -> GemmJob {
    scaled(
        Scales::Block,
        (GemmOp::Gemm, 1),
        (72, 264, 1296),
        (128, 256),
    )
}

/// Two ranks add up sums that have different scales.
fn rows() -> GemmJob {
    scaled(Scales::Row, (GemmOp::GemmRs, 2), (72, 136, 272), (64, 128))
}

fn tensors() -> GemmJob {
    scaled(Scales::Tensor, (GemmOp::Gemm, 1), (64, 128, 400), (64, 128))
}

/// Every CTA sends rows with scales of blocks, in two slices of K. Two CTAs share each tile, and the second one multiplies only
/// elements of the second slice.
fn sent_by_all() -> GemmJob {
    let mut job = scaled(
        Scales::Block,
        (GemmOp::AgGemm, 2),
        (128, 128, 1024),
        (64, 128),
    );
    let tuning = &mut job.config.tuning;
    (tuning.comm_ctas, tuning.k_slices, tuning.split_k) = (Some(0), Some(2), Some(2));
    job
}

/// A CTA that only communicates sends rows with a scale each.
fn sent_by_a_cta() -> GemmJob {
    let mut job = scaled(Scales::Row, (GemmOp::AgGemm, 2), (256, 128, 256), (64, 128));
    let tuning = &mut job.config.tuning;
    (tuning.comm_ctas, tuning.k_slices) = (Some(1), Some(1));
    job
}
