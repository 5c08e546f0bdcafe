//! Kernels of several nodes, on simulated GPUs and emulated NICs that delay, reorder, repeat and lose: right for every seed,
//! always with the same bits, and never a finding.

mod attention;
mod experts;
mod failures;
mod graphs;
mod mutations;
mod rank;
mod steps;

use mkernel::{BLayout, Dim, Epilogue, Faults, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel_testing::jobs::{GemmJob, all_are_right_when_counters_wrap};
use std::time::Duration;

/// Seeds per job.
const SEEDS: u64 = 2;

/// Late by more than a kernel takes, lost, and told twice.
fn bad_network() -> Faults {
    Faults {
        jitter: Duration::from_micros(300),
        loss: 0.1,
        retransmission: Duration::from_micros(200),
        duplicates: 0.1,
        ..Faults::default()
    }
}

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
        op,
        m: Dim::Static(m),
        n: Dim::Static(n),
        k: Dim::Static(k),
        b_layout,
        epilogue: Epilogue::default(),
        tuning,
    };
    let name = format!("{op} of {m}x{n}x{k} on {nodes} nodes of {local_world}");
    let mut job = GemmJob::new(nodes * local_world, config, GemmShape { m, n, k }, 6);
    (job.nodes, job.faults) = (nodes, bad_network());
    (name, job)
}

fn few_ctas() -> Tuning {
    Tuning {
        comm_ctas: Some(1),
        ..Tuning::default()
    }
}

/// Shapes: shards of whole tiles, tiles that straddle shards and tails, ranks without rows.
fn jobs(op: GemmOp) -> Vec<(String, GemmJob)> {
    let two = Tuning {
        comm_ctas: Some(2),
        tile_m: Some(64),
        ..Tuning::default()
    };
    vec![
        job(op, (2, 1), (256, 256, 128), few_ctas()),
        job(op, (2, 2), (512, 128, 128), two),
        job(op, (2, 2), (300, 136, 200), few_ctas()),
        job(op, (3, 2), (100, 72, 72), few_ctas()),
        job(op, (3, 1), (2, 64, 64), few_ctas()),
        job(op, (2, 3), (384, 64, 64), few_ctas()),
        job(op, (2, 4), (9, 128, 64), few_ctas()),
    ]
}

// After two calls, the count of calls passes 2^31 and 2^32, and with it the count of puts passes 2^32.

#[test]
fn ag_gemm_is_right_however_old_it_is() {
    all_are_right_when_counters_wrap(&jobs(GemmOp::AgGemm));
}

#[test]
fn gemm_rs_is_right_however_old_it_is() {
    all_are_right_when_counters_wrap(&jobs(GemmOp::GemmRs));
}

#[test]
fn gemm_ar_is_right_however_old_it_is() {
    all_are_right_when_counters_wrap(&jobs(GemmOp::GemmAr));
}
