//! Kernels of `ag_gemm`, and of the main loop that all GEMM operators share.

use crate::{Kernel, job};
use mkernel::spec::{BLayout, Epilogue, GemmOp, GemmShape, Transfer, Tuning};
use mkernel_testing::jobs::GemmJob;

pub const KERNELS: &[Kernel] = &[
    ("push", push),
    ("slots", slots),
    ("long_rows", long_rows),
    ("split_k", split_k),
    ("split_k_of_few_rows", split_k_of_few_rows),
    ("kn", kn),
    ("tails", tails),
    ("few_rows", few_rows),
    ("copies", copies),
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

/// Options for a large tile. One warp of each CTA pushes.
fn large() -> Tuning {
    Tuning {
        tile_m: Some(128),
        tile_n: Some(256),
        ..by_sms(0)
    }
}

/// One warp of each CTA pushes. Each CTA computes several tiles, so that it uses its pipeline stages again.
fn push() -> GemmJob {
    let tuning = Tuning {
        k_slices: Some(2),
        ..large()
    };
    gather(2, (256, 512, 512), BLayout::Nk, tuning, 2)
}

/// A communication CTA pushes through slots of shared memory.
fn slots() -> GemmJob {
    gather(2, (256, 128, 1024), BLayout::Nk, by_sms(1), 3)
}

/// Rows are longer than a slot of shared memory.
fn long_rows() -> GemmJob {
    let tuning = Tuning {
        k_slices: Some(1),
        ..by_sms(1)
    };
    gather(2, (16, 8, 10240), BLayout::Nk, tuning, 2)
}

/// Several CTAs share a tile, each with a slice of K.
fn split_k() -> GemmJob {
    gather(2, (512, 512, 512), BLayout::Nk, large(), 6)
}

/// More CTAs share a tile than a warpgroup has sub-tiles, so that one CTA completes the tile. C has rows of three warps.
fn split_k_of_few_rows() -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        split_k: Some(7),
        cluster: Some(false),
        ..Tuning::default()
    };
    gather(1, (40, 72, 512), BLayout::Nk, tuning, 7)
}

/// B has the layout [K, N].
fn kn() -> GemmJob {
    gather(2, (256, 264, 256), BLayout::Kn, large(), 3)
}

/// Tiles straddle shards, and every dimension ends inside a tile.
fn tails() -> GemmJob {
    gather(4, (300, 72, 136), BLayout::Nk, by_sms(0), 3)
}

/// C has fewer rows than a tile, so that stages are one piece. K has more steps than there are stages.
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
    let tuning = Tuning {
        transfer: Some(Transfer::CopyEngine),
        ..Tuning::default()
    };
    gather(2, (256, 128, 256), BLayout::Nk, tuning, 2)
}

/// Load threads of all CTAs meet after some stages.
fn paced() -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        pace_steps: Some(2),
        ..by_sms(1)
    };
    gather(2, (512, 512, 256), BLayout::Nk, tuning, 4)
}

/// Only rank 0 has a row, so it waits for nothing but the begin of the call on the other ranks.
fn empty_ranks() -> GemmJob {
    let mut job = gather(4, (1, 72, 136), BLayout::Nk, by_sms(0), 2);
    job.skew = 100;
    job
}
