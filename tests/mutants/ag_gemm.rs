//! Kernels of `ag_gemm`, and of the main loop that all GEMM operators share.

use crate::{Kernel, job};
use mkernel::spec::{BLayout, Epilogue, GemmOp, GemmShape, Transfer, Tuning};
use mkernel_testing::jobs::GemmJob;

pub const KERNELS: &[Kernel] = &[
    ("few_rows", few_rows),
    ("copies", copies),
    ("late_copies", late_copies),
    ("paced", paced),
    ("empty_ranks", empty_ranks),
];

fn gather(
    world: u32,
    (m, n, k): (u64, u64, u64),
    layout: BLayout,
    tuning: Tuning,
    sms: u32,
) -> GemmJob {
    let kernel = (GemmOp::AgGemm, Epilogue::default(), tuning);
    job(kernel, world, GemmShape { m, n, k }, layout, sms)
}

fn by_sms(comm_ctas: u32) -> Tuning {
    Tuning {
        transfer: Some(Transfer::SmPush),
        comm_ctas: Some(comm_ctas),
        ..Tuning::default()
    }
}

fn by_copies() -> Tuning {
    Tuning {
        transfer: Some(Transfer::CopyEngine),
        ..Tuning::default()
    }
}

/// C has fewer rows than a tile, so that a stage is one piece. K has more steps than the pipeline has stages.
fn few_rows() -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        ..by_sms(0)
    };
    gather(2, (24, 136, 1024), BLayout::Nk, tuning, 2)
}

/// The host's copy engines send rows.
fn copies() -> GemmJob {
    gather(2, (256, 128, 256), BLayout::Nk, by_copies(), 2)
}

/// Calls are done long before the host's copy engines.
fn late_copies() -> GemmJob {
    let mut job = gather(2, (256, 8, 8), BLayout::Nk, by_copies(), 1);
    job.skew = 100;
    job
}

/// Load threads of all CTAs wait for each other after some stages.
fn paced() -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        pace_steps: Some(2),
        ..by_sms(1)
    };
    gather(2, (512, 512, 256), BLayout::Nk, tuning, 4)
}

/// Only rank 0 has a row, so it waits only for the beginning of the call on the other ranks.
fn empty_ranks() -> GemmJob {
    let mut job = gather(4, (1, 72, 136), BLayout::Nk, by_sms(0), 2);
    job.skew = 100;
    job
}
