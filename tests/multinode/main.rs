//! Tests of operators on several nodes, with simulated GPUs and with emulated NICs that delay, reorder, repeat and lose
//! messages. The results must be right, and the simulator must find no defect.

mod attention;
mod bounded;
mod experts;
mod failures;
mod graphs;
mod in_place;
mod rank;
mod sharing;
mod steps;

use mkernel::spec::{BLayout, Dim, Epilogue, GemmConfig, GemmOp, GemmShape, Scales, Tuning};
use mkernel_testing::jobs::{
    GemmJob, all_are_right_now_or_after_many_calls, bad_network, each_in_one,
};

/// Returns a named job of a GEMM operator on this network.
fn job(
    op: GemmOp,
    (nodes, local_world): (u32, u32),
    (m, n, k): (u64, u64, u64),
    tuning: Tuning,
) -> (String, GemmJob) {
    let b_layout = match n % 16 {
        0 => BLayout::Nk,
        _ => BLayout::Kn,
    };
    let config = GemmConfig {
        m: Dim::Static(m),
        n: Dim::Static(n),
        k: Dim::Static(k),
        b_layout,
        epilogue: Epilogue::default(),
        tuning,
        ..GemmConfig::new(op)
    };
    let name = format!("{op} of {m}x{n}x{k} on {nodes} nodes of {local_world}");
    let mut job = GemmJob::new(nodes * local_world, config, GemmShape { m, n, k }, 6);
    (job.nodes, job.faults) = (nodes, bad_network());
    (name, job)
}

/// Returns options with one communication CTA.
fn one_comm_cta() -> Tuning {
    Tuning {
        comm_ctas: Some(1),
        ..Tuning::default()
    }
}

/// Returns a job of `ag_gemm` whose rows of e4m3 travel with their scales.
fn scaled_job(scales: Scales, topology: (u32, u32), shape: (u64, u64, u64)) -> (String, GemmJob) {
    let (name, job) = job(GemmOp::AgGemm, topology, shape, one_comm_cta());
    (
        format!("{name} with scales of {scales}"),
        job.scaled(scales),
    )
}

/// Returns jobs with shards of whole tiles, tiles that straddle shards, partial tiles, and ranks without rows.
fn jobs(op: GemmOp) -> Vec<(String, GemmJob)> {
    let two = Tuning {
        comm_ctas: Some(2),
        tile_m: Some(64),
        ..Tuning::default()
    };
    let of_128_rows = Tuning {
        tile_m: Some(128),
        tile_n: Some(128),
        ..one_comm_cta()
    };
    vec![
        job(op, (2, 1), (256, 256, 128), one_comm_cta()),
        job(op, (2, 2), (512, 128, 128), two),
        job(op, (2, 2), (300, 136, 200), one_comm_cta()),
        job(op, (3, 2), (100, 72, 72), one_comm_cta()),
        job(op, (3, 1), (2, 64, 64), one_comm_cta()),
        job(op, (2, 3), (384, 64, 64), one_comm_cta()),
        job(op, (2, 4), (9, 128, 64), one_comm_cta()),
        // A put has several tiles of few rows.
        job(op, (2, 1), (40, 1152, 64), of_128_rows),
        // Several puts of several tiles.
        job(op, (2, 1), (256, 1152, 64), of_128_rows),
    ]
}

/// When the call count passes 2^32, the number of puts does too.
#[test]
fn ag_gemm_is_right() {
    all_are_right_now_or_after_many_calls(&jobs(GemmOp::AgGemm));
    all_are_right_now_or_after_many_calls(&[
        scaled_job(Scales::Row, (2, 1), (150, 72, 144)),
        scaled_job(Scales::Block, (2, 2), (300, 136, 272)),
    ]);
}

/// One test serves both operators, whose partial sums cross the network alike.
#[test]
fn sums_are_right() {
    let jobs = each_in_one(&[GemmOp::GemmRs, GemmOp::GemmAr], jobs);
    all_are_right_now_or_after_many_calls(&jobs);
}
