//! Batch invariance: rows that batches share have equal bits in all batches and plans.

use crate::ranks::{seed, worlds};
use mkernel::spec::{
    BLayout, CollectiveConfig, CollectiveOp, Dtype, Epilogue, GemmConfig, GemmOp, Norm, SumEpilogue,
};
use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::attention::compared::compared;
use mkernel_testing::jobs::batches::Batch;
use mkernel_testing::jobs::compared::Compared;
use mkernel_testing::jobs::token_batches::{ComparedTokens, TokenBatch};

/// Columns of the result and the contracted dimension, with 4, 2 and 1 granules.
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
        one_in: 1,
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

#[test]
#[ignore = "needs GPUs"]
fn rows_of_collectives_have_equal_bits_in_all_batches() {
    let norm = SumEpilogue {
        residual: true,
        norm: Norm::Rms,
        ..SumEpilogue::default()
    };
    for world in worlds(1) {
        for (epilogue, cols) in [(norm, 8192), (norm, 1032), (SumEpilogue::default(), 4096)] {
            let config = CollectiveConfig {
                dtype: Dtype::Fp32,
                epilogue,
                batch_invariant: true,
                ..CollectiveConfig::new(CollectiveOp::AllReduce)
            };
            let compared = Compared {
                all: Batch::new(world, config, (cols, 0), (0..POOL / 4).collect()),
                counts: vec![1, 7, 64, 100],
                one_in: 1,
            };
            let result = compared.run_on(Backend::Gpus, seed());
            assert_eq!(result, Ok(()), "{epilogue:?}, {world} ranks");
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn tokens_have_equal_bits_in_all_batches() {
    for world in worlds(1) {
        // The host draws all elements.
        for (sizes, swiglu) in [((4096, 384), true), ((1024, 768), false)] {
            let mut layer = TokenBatch::new(world, (16, 4), sizes);
            layer.dispatch.swiglu = swiglu;
            let compared = ComparedTokens {
                layer,
                pool: 1024,
                counts: vec![1, 100, 600],
                one_in: 1,
            };
            let result = compared.run_on(Backend::Gpus, seed());
            assert_eq!(result, Ok(()), "{sizes:?}, swiglu {swiglu}, {world} ranks");
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn sequences_have_equal_bits_in_all_calls() {
    for world in worlds(1) {
        for is_causal in [false, true] {
            let result = compared((1, world), is_causal).run_on(Backend::Gpus);
            assert_eq!(result, Ok(()), "{world} ranks, causal: {is_causal}");
        }
    }
}
