//! Kernels of tiles that the CTAs of a cluster share.

use crate::{Kernel, job};
use mkernel::spec::{Activation, BLayout, Dtype, Epilogue, GemmOp, GemmShape, Tuning};
use mkernel_testing::jobs::{GemmJob, SimulatedJob};

pub const KERNELS: &[Kernel] = &[("cluster", cluster), ("cluster_of_rows", cluster_of_rows)];

fn shared((tile_m, tile_n): (u32, u32), ctas: u32) -> Tuning {
    Tuning {
        tile_m: Some(tile_m),
        tile_n: Some(tile_n),
        split_k: Some(ctas),
        cluster: Some(true),
        ..Tuning::default()
    }
}

/// Three CTAs share eight blocks of columns. C has rows of three warps, and the last warp has few rows.
fn cluster() -> GemmJob {
    let (m, n, k) = (40, 136, 512);
    let kernel = (GemmOp::AgGemm, Epilogue::default(), shared((64, 128), 3));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 6)
}

/// Several row tiles with an epilogue. The last row tile has few rows.
fn cluster_of_rows() -> GemmJob {
    let (m, n, k) = (150, 264, 256);
    let epilogue = Epilogue {
        bias: true,
        residual: true,
        activation: Activation::Silu,
        output: Some(Dtype::Fp32),
        ..Epilogue::default()
    };
    let kernel = (GemmOp::AgGemm, epilogue, shared((128, 256), 2));
    job(kernel, 1, GemmShape { m, n, k }, BLayout::Kn, 8)
}

/// If the gate refuses one CTA of a cluster, the other CTAs do not wait for it. The call then ends without a count, so the next
/// call assumes that it is still running.
#[test]
fn a_cta_that_is_refused_ends_its_cluster() {
    let refused = (
        "const bool entered = enter(ctx);",
        "const bool entered = enter(ctx) && blockIdx.x % 2 == 0;",
    );
    let mut job = cluster_of_rows();
    job.edit(vec![(refused.0.into(), refused.1.into())]);
    let failure = job.run(0).expect_err("no result");
    assert!(
        failure.contains("while call 1 of operator 1 (ag_gemm_"),
        "{failure}"
    );
}
