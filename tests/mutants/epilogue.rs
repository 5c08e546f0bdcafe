//! Kernels of epilogues.

use crate::{Kernel, job};
use mkernel::spec::{
    Activation, BLayout, Dtype, Epilogue, Eps, GemmOp, GemmShape, Norm, Scales, Tuning,
};
use mkernel_testing::jobs::GemmJob;

pub const KERNELS: &[Kernel] = &[
    ("finished_by_owners", finished_by_owners),
    ("fp32_to_all", fp32_to_all),
    ("fp32_alone", fp32_alone),
    ("shared_tiles", shared_tiles),
];

const ALL: Epilogue = Epilogue {
    bias: true,
    residual: true,
    activation: Activation::Relu,
    swiglu: false,
    output: None,
    norm: Norm::None,
    eps: Eps::new(1e-6),
    result_scales: Scales::None,
};

fn tuning(tile_n: u32, shots: Option<u32>) -> Tuning {
    Tuning {
        tile_m: Some(64),
        tile_n: Some(tile_n),
        shots,
        round_tiles: shots.filter(|shots| *shots == 2).map(|_| 1),
        ..Tuning::default()
    }
}

/// Each rank owns 50 rows. Tiles end beyond the last column of C.
fn finished_by_owners() -> GemmJob {
    let (m, n, k) = (100, 520, 128);
    let kernel = (GemmOp::GemmRs, ALL, tuning(256, Some(2)));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 6)
}

/// Owners send their results to all ranks as fp32.
fn fp32_to_all() -> GemmJob {
    let epilogue = Epilogue {
        residual: true,
        output: Some(Dtype::Fp32),
        ..Epilogue::default()
    };
    let (m, n, k) = (128, 384, 128);
    let kernel = (GemmOp::GemmAr, epilogue, tuning(128, Some(2)));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 3)
}

/// One rank writes C as fp32.
fn fp32_alone() -> GemmJob {
    let epilogue = Epilogue {
        output: Some(Dtype::Fp32),
        ..ALL
    };
    let (m, n, k) = (150, 264, 128);
    let kernel = (GemmOp::AgGemm, epilogue, tuning(256, None));
    job(kernel, 1, GemmShape { m, n, k }, BLayout::Nk, 2)
}

/// Several CTAs share a tile, and each applies the epilogue to a part of its columns.
fn shared_tiles() -> GemmJob {
    let (m, n, k) = (128, 256, 512);
    let kernel = (GemmOp::AgGemm, ALL, tuning(256, None));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 4)
}
