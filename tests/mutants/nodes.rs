//! Kernels of products and of attention on several nodes.

use crate::Kernel;
use mkernel::spec::Placement::Contiguous;
use mkernel::spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel_testing::jobs::attention::AttentionJob;
use mkernel_testing::jobs::{GemmJob, bad_network};

pub const KERNELS: &[Kernel<GemmJob>] = &[
    ("gather", gather),
    ("scatter", scatter),
    ("to_all", to_all),
    ("one_row", one_row),
];

fn job(
    op: GemmOp,
    (nodes, local_world): (u32, u32),
    (m, n, k): (u64, u64, u64),
    tuning: Tuning,
) -> GemmJob {
    let config = GemmConfig {
        m: Dim::Static(m),
        n: Dim::Static(n),
        k: Dim::Static(k),
        b_layout: BLayout::Nk,
        tuning,
        ..GemmConfig::new(op)
    };
    let job = GemmJob::new(nodes * local_world, config, GemmShape { m, n, k }, 6);
    job.across(nodes, bad_network())
}

/// Returns options with one communication CTA.
fn one_comm_cta() -> Tuning {
    Tuning {
        comm_ctas: Some(1),
        ..Tuning::default()
    }
}

fn small_tiles() -> Tuning {
    Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        ..one_comm_cta()
    }
}

fn gather() -> GemmJob {
    job(GemmOp::AgGemm, (2, 2), (256, 64, 128), one_comm_cta())
}

/// Each rank sends its one tile in one put.
fn scatter() -> GemmJob {
    job(GemmOp::GemmRs, (2, 2), (256, 128, 128), small_tiles())
}

fn to_all() -> GemmJob {
    job(GemmOp::GemmAr, (2, 2), (256, 128, 128), small_tiles())
}

/// Only the first rank has rows. It does not wait for other ranks, so it is done long before its rows are sent.
fn one_row() -> GemmJob {
    let job = job(GemmOp::AgGemm, (2, 1), (1, 64, 128), one_comm_cta());
    job.with_symmetric_a()
}

pub const OF_ATTENTION: &[Kernel<AttentionJob>] = &[
    ("all_keys", all_keys),
    ("one_way", one_way),
    ("far_ahead", far_ahead),
];

/// Returns a job in which each rank has several tiles of two heads.
fn all_keys() -> AttentionJob {
    attention((2, 2), [1, 512, 2, 2, 64])
}

/// Returns a job in which the first node waits for no keys, but only for the numbers of puts.
fn one_way() -> AttentionJob {
    attention((2, 2), [1, 512, 1, 1, 64]).causal(Contiguous)
}

/// Returns a job in which only rank 1 waits, for rank 0, so that rank 0 can be two calls ahead.
fn far_ahead() -> AttentionJob {
    let mut job = attention((2, 2), [1, 2, 4, 4, 64]).causal(Contiguous);
    (job.machine.sms, job.machine.skew) = (2, 95);
    job.pushed_by(1)
}

/// Two communication CTAs, a short lead of forwards, and at most 4 parts per put.
fn attention((nodes, local_world): (u32, u32), sizes: [u64; 5]) -> AttentionJob {
    let job = AttentionJob::new(nodes * local_world, sizes, 3);
    job.across(nodes, bad_network())
        .pushed_by(2)
        .forwarding_after(4)
}
