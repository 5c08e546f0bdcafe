//! Batch invariance: rows that batches share have equal bits, whatever the batch and the plan.

use crate::ranks::{seed, worlds};
use mkernel::spec::{BLayout, Dtype, Epilogue, GemmConfig, GemmOp, Norm};
use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::batches::Batch;
use mkernel_testing::jobs::compared::Compared;

/// Columns of the result and the contracted dimension: sizes that have 4, 2 and 1 granules.
const SIZES: [(u64, u64); 3] = [(2560, 4096), (5120, 2048), (8192, 1024)];
/// The numbers of rows of the batches.
const ROWS: [u64; 9] = [1, 2, 7, 16, 17, 64, 100, 256, 1000];
/// The rows from which batches are taken.
const POOL: u64 = 1024;

fn compare(
    op: GemmOp,
    epilogue: Epilogue,
    world: u32,
    sizes: (u64, u64),
    pool: u64,
    counts: &[u64],
) {
    let config = GemmConfig {
        batch_invariant: true,
        b_layout: BLayout::Nk,
        epilogue,
        ..GemmConfig::new(op)
    };
    let compared = Compared {
        all: Batch::new(world, config, sizes, (0..pool).collect()),
        counts: counts.to_vec(),
    };
    let result = compared.run_on(Backend::Gpus, seed());
    assert_eq!(result, Ok(()), "{op} {sizes:?} {epilogue:?}, {world} ranks");
}

#[test]
#[ignore = "needs GPUs"]
fn rows_have_equal_bits_in_all_batches() {
    let fp32 = Epilogue {
        output: Some(Dtype::Fp32),
        ..Epilogue::default()
    };
    let norm = Epilogue {
        residual: true,
        norm: Norm::Rms,
        ..Epilogue::default()
    };
    for world in worlds(1) {
        for sizes in SIZES {
            compare(GemmOp::Gemm, fp32, world, sizes, POOL, &ROWS);
            compare(GemmOp::GemmAr, norm, world, sizes, POOL, &ROWS);
            if world > 1 {
                compare(GemmOp::AgGemm, fp32, world, sizes, POOL, &ROWS);
                compare(GemmOp::GemmRs, fp32, world, sizes, POOL, &ROWS);
                compare(
                    GemmOp::GemmAr,
                    Epilogue::default(),
                    world,
                    sizes,
                    POOL,
                    &ROWS,
                );
            }
        }
        compare(GemmOp::Gemm, fp32, world, SIZES[0], 8192, &[3, 8, 4096]);
    }
}
