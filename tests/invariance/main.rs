//! Batch invariance on simulated GPUs: rows, tokens and sequences that batches share have equal bits, whatever the batch and the plan.

mod defaults;
mod planted;

use mkernel::spec::{
    Activation, BLayout, CollectiveConfig, CollectiveOp, Dtype, Epilogue, GemmConfig, GemmOp, Norm,
    Problem, Scales, SumEpilogue,
};
use mkernel_testing::jobs::attention::compared::sequences;
use mkernel_testing::jobs::batches::Batch;
use mkernel_testing::jobs::compared::Compared;
use mkernel_testing::jobs::token_batches::{ComparedTokens, TokenBatch};
use mkernel_testing::jobs::{all_are_right, share};

/// Columns of the result and the contracted dimension, with 4, 2 and 1 granules.
const FOUR: (u64, u64) = (136, 2048);
const TWO: (u64, u64) = (264, 1024);
const ONE: (u64, u64) = (136, 512);

/// One of this number of batches of a job is compared with the batch of all rows.
const ONE_IN: u64 = 3;

/// The rows from which batches are taken.
const POOL: u64 = 150;

/// A batch-invariant operator with results in fp32, whose bits show the order of additions.
fn invariant(op: GemmOp) -> GemmConfig {
    GemmConfig {
        epilogue: Epilogue {
            output: Some(Dtype::Fp32),
            ..Epilogue::default()
        },
        batch_invariant: true,
        b_layout: BLayout::Nk,
        ..GemmConfig::new(op)
    }
}

/// Batches of an operator on `nodes` nodes of `local` ranks.
fn compared(
    problem: impl Into<Problem>,
    (nodes, local): (u32, u32),
    sizes: (u64, u64),
) -> Compared {
    let all = Batch::new(nodes * local, problem, sizes, (0..POOL).collect());
    Compared {
        // Enough SMs that four CTAs can share each of three tiles.
        all: Batch {
            nodes,
            sms: if nodes * local == 1 { 16 } else { 8 },
            ..all
        },
        counts: vec![1, 17, 100],
        one_in: 1,
    }
}

fn jobs() -> Vec<(String, Compared)> {
    let with = |op, epilogue| GemmConfig {
        epilogue,
        ..invariant(op)
    };
    let norm = Epilogue {
        residual: true,
        norm: Norm::Rms,
        ..Epilogue::default()
    };
    let [normalised, scattered] = [GemmOp::GemmAr, GemmOp::GemmRs].map(|op| with(op, norm));
    let all_of_it = Epilogue {
        bias: true,
        residual: true,
        activation: Activation::Silu,
        output: Some(Dtype::Fp32),
        ..Epilogue::default()
    };
    let blocks = GemmConfig {
        dtype: Dtype::E4m3,
        scales: Scales::Block,
        ..invariant(GemmOp::GemmAr)
    };
    let fp16 = GemmConfig {
        dtype: Dtype::Fp16,
        b_layout: BLayout::Kn,
        ..with(GemmOp::GemmRs, all_of_it)
    };
    [
        ("gemm, in clusters", invariant(GemmOp::Gemm), (1, 1), FOUR),
        ("gemm with a norm", normalised, (1, 1), TWO),
        ("ag_gemm", invariant(GemmOp::AgGemm), (1, 2), FOUR),
        ("gemm_rs", invariant(GemmOp::GemmRs), (1, 2), TWO),
        ("gemm_rs of four ranks", fp16, (1, 4), ONE),
        ("gemm_ar", with(GemmOp::GemmAr, all_of_it), (1, 4), ONE),
        ("gemm_ar with a norm", normalised, (1, 2), TWO),
        ("gemm_rs with a norm", scattered, (1, 4), TWO),
        ("gemm_ar of e4m3", blocks, (1, 2), ONE),
        (
            "gemm_ar across nodes",
            invariant(GemmOp::GemmAr),
            (2, 2),
            ONE,
        ),
        (
            "gemm_rs across nodes",
            invariant(GemmOp::GemmRs),
            (3, 1),
            TWO,
        ),
    ]
    .map(|(name, config, ranks, sizes)| (name.to_owned(), compared(config, ranks, sizes)))
    .into()
}

#[test]
fn rows_have_equal_bits_in_all_batches() {
    let mut jobs = share(jobs(), "", (0, 3));
    jobs.iter_mut().for_each(|(_, job)| job.one_in = ONE_IN);
    all_are_right(&jobs, 1);
}

/// A batch-invariant collective of rows of bf16.
fn collective(op: CollectiveOp) -> CollectiveConfig {
    CollectiveConfig {
        batch_invariant: true,
        ..CollectiveConfig::new(op)
    }
}

/// An all-reduce with a norm in fp32, whose bits show the order of additions.
fn normalised() -> CollectiveConfig {
    CollectiveConfig {
        dtype: Dtype::Fp32,
        epilogue: SumEpilogue {
            bias: true,
            residual: true,
            norm: Norm::Rms,
            ..SumEpilogue::default()
        },
        ..collective(CollectiveOp::AllReduce)
    }
}

fn collectives() -> Vec<(String, Compared)> {
    // Rows of several blocks with a short last block.
    let cols = (1040, 0);
    let sums = collective(CollectiveOp::AllReduce);
    // On one node, sums and moved rows need no option.
    let plain = CollectiveConfig::new;
    let in_halves = CollectiveConfig {
        dtype: Dtype::Bf16,
        ..normalised()
    };
    let narrow = |result_scales, mut config: CollectiveConfig| {
        config.epilogue.result_scales = result_scales;
        config
    };
    [
        ("rows of e4m3", narrow(Scales::Row, normalised()), (1, 2)),
        ("blocks of e4m3", narrow(Scales::Block, in_halves), (2, 2)),
        ("norm of two ranks", normalised(), (1, 2)),
        ("norm on one rank", normalised(), (1, 1)),
        ("norm across nodes", in_halves, (2, 2)),
        ("all_reduce", plain(CollectiveOp::AllReduce), (1, 4)),
        ("all_reduce across nodes", sums, (2, 2)),
        (
            "reduce_scatter across nodes",
            collective(CollectiveOp::ReduceScatter),
            (3, 1),
        ),
        ("all_gather", plain(CollectiveOp::AllGather), (1, 2)),
    ]
    .map(|(name, config, ranks)| (name.to_owned(), few_rows(config, ranks, cols)))
    .into()
}

/// Batches of a pool that is small enough for packets, and large enough for several chunks.
fn few_rows(config: CollectiveConfig, ranks: (u32, u32), sizes: (u64, u64)) -> Compared {
    let compared = compared(config, ranks, sizes);
    Compared {
        all: compared.all.of_rows((0..40).collect()),
        counts: vec![1, 17],
        one_in: 1,
    }
}

#[test]
fn rows_of_collectives_have_equal_bits_in_all_batches() {
    let mut jobs = share(collectives(), "", (0, 3));
    jobs.iter_mut().for_each(|(_, job)| job.one_in = ONE_IN);
    all_are_right(&jobs, 1);
}

/// Elements of a token, and columns of the result of an expert.
const NARROW: (u64, u64) = (1024, 136);

/// Layers of experts on `nodes` nodes of `local` ranks.
fn layer((nodes, local): (u32, u32), swiglu: bool, sizes: (u64, u64)) -> ComparedTokens {
    let mut layer = TokenBatch::new(nodes * local, (8, 3), sizes);
    (layer.nodes, layer.dispatch.swiglu) = (nodes, swiglu);
    ComparedTokens {
        layer,
        pool: 40,
        counts: vec![17, 3],
        one_in: 1,
    }
}

/// Layers with tokens and weights of e4m3, with these scales.
fn scaled(ranks: (u32, u32), scales: Scales) -> ComparedTokens {
    let mut compared = layer(ranks, true, NARROW);
    let dispatch = &mut compared.layer.dispatch;
    (dispatch.dtype, dispatch.scales) = (Dtype::E4m3, scales);
    compared
}

fn layers() -> Vec<(String, ComparedTokens)> {
    [
        ("experts of e4m3, by rows", scaled((1, 2), Scales::Row)),
        ("experts of e4m3, by blocks", scaled((2, 1), Scales::Block)),
        ("experts of one rank", layer((1, 1), true, NARROW)),
        ("experts of two ranks", layer((1, 2), false, NARROW)),
        ("experts of four ranks", layer((1, 4), true, NARROW)),
        ("experts across nodes", layer((2, 2), false, NARROW)),
    ]
    .map(|(name, layer)| (name.to_owned(), layer))
    .into()
}

#[test]
fn tokens_have_equal_bits_in_all_batches() {
    let mut jobs = share(layers(), "", (0, 3));
    jobs.iter_mut().for_each(|(_, job)| job.one_in = ONE_IN);
    all_are_right(&jobs, 1);
}

#[test]
fn sequences_have_equal_bits_in_all_calls() {
    all_are_right(&sequences(), 1);
}
