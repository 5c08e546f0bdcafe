//! Tests of the code that the attribute `fused_kernel` generates, for every notation of its values.
#![deny(warnings, missing_docs)]

use mkernel::cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};
use mkernel::half::{bf16, f16};
use mkernel::{
    FusedKernel, KernelConfig, fused_kernel,
    spec::{Activation, BLayout, Dim, Dtype, Eps, GemmConfig, GemmOp, Norm, Problem, Transfer},
};
use std::sync::Arc;

/// A kernel whose sizes are all known.
#[fused_kernel(op = ag_gemm, world = 8, m = 8192, n = 1024, k = 8192)]
pub struct Static;

/// A kernel with values in the notations of strings, words and numbers.
#[fused_kernel(
    op = "ag_gemm", name = "up", world = 4, m = dynamic, n = "dynamic", k = 8_192,
    b_layout = nk, tile_m = 128, tile_n = 0x80, stages = 4, transfer = "sm_push", comm_ctas = 8u32,
    k_slices = 2, chunk_rows = 256, group_m = 8,
)]
pub struct Chosen;

/// A kernel of one rank, where options of the transfer between ranks have no effect.
#[fused_kernel(
    op = ag_gemm, world = 1, m = dynamic, n = 1024, k = 8192,
    transfer = sm_push, comm_ctas = 8, k_slices = 2, chunk_rows = 128,
)]
pub struct Alone;

/// A kernel with an epilogue.
#[fused_kernel(
    op = gemm_rs, world = 8, m = dynamic, n = 8192, k = 1024,
    bias = true, activation = gelu, residual = true, output = "fp32",
)]
pub struct Finished;

/// A kernel of fp16.
#[fused_kernel(op = gemm_rs, m = dynamic, n = 1024, k = 8192, dtype = fp16)]
pub struct Halves;

/// A product without communication.
#[fused_kernel(op = gemm, m = "..=64", n = 1024, k = 8192, activation = silu)]
pub struct Local;

/// A sum over ranks whose rows are normalised.
#[fused_kernel(op = all_reduce, m = dynamic, n = 4096, bias = true, residual = true, norm = rms, eps = 1e-5)]
pub struct Normalised;

/// A kernel that sends tokens to their experts.
#[fused_kernel(
    op = dispatch_gemm, world = 8, experts = 256, top_k = 8, max_tokens = dynamic, hidden = 7168, intermediate = 2048,
    b_layout = nk, swiglu = true, max_rows = 65536, tile_m = 128, tile_n = 256, comm_ctas = 8,
)]
pub struct Experts;

/// A kernel that returns the experts' outputs to the tokens.
#[fused_kernel(
    op = "combine",
    world = 8,
    experts = 256,
    top_k = 8,
    max_tokens = 4096,
    hidden = 7168,
    max_rows = 65536
)]
pub struct Sums;

#[mkernel::fused_kernel(op = ag_gemm, world = 1, m = dynamic, n = dynamic, k = dynamic)]
struct Private;

macro_rules! layer {
    ($name:ident, $n:expr, $transfer:ident) => {
        #[fused_kernel(op = ag_gemm, world = 8, m = 4096, n = $n, k = 8192, transfer = $transfer)]
        struct $name;
    };
}
layer!(FromMacro, 2048, copy_engine);

type Prepared<T> = Result<T, mkernel::Error>;

/// A kernel for the ranks and nodes of any communicator.
#[fused_kernel(op = ag_gemm, m = dynamic, n = 1024, k = 8192)]
pub struct AnyRanks;

/// Makes a call with each kind of operands. The test compiles this function and does not run it.
#[allow(dead_code)]
fn calls(
    stream: &Arc<CudaStream>,
    (finished, sums, any, normalised): (&Finished, &Sums, &AnyRanks, &Normalised),
    (halves, half, half_sum): (&Halves, &CudaSlice<f16>, &mut CudaSlice<f16>),
    (x, indices, weights): (&CudaSlice<bf16>, &CudaView<'_, i32>, &CudaSlice<f32>),
    (y, sum, z): (
        &mut CudaViewMut<'_, bf16>,
        &mut CudaSlice<f32>,
        &mut CudaSlice<bf16>,
    ),
) -> Result<(), mkernel::Error> {
    let operands = HalvesOperands {
        a: half,
        b: half,
        c: half_sum,
    };
    halves.launch(stream, operands)?;
    finished.launch(
        stream,
        FinishedOperands {
            a: x,
            b: x,
            c: sum,
            bias: x,
            residual: x,
        },
    )?;
    let operands = SumsOperands {
        rows: x,
        num_tokens: indices,
        row_indices: indices,
        topk_weights: weights,
        c: y,
    };
    sums.launch(stream, operands)?;
    let operands = NormalisedOperands {
        x,
        y: &mut *y,
        bias: x,
        residual: x,
        weight: x,
        residual_out: z,
    };
    normalised.call(stream, operands).rows(3).launch()?;
    let call = any.call(stream, AnyRanksOperands { a: x, b: x, c: y });
    call.launch()
}

#[test]
fn generated_configurations_match_their_attributes() {
    let _: fn(&mkernel::Communicator) -> Prepared<Static> = Static::prepare;
    let _: fn(&mkernel::Communicator, ChosenSizes) -> Prepared<Chosen> = Chosen::prepare;
    let _: fn(&mkernel::Communicator, PrivateSizes) -> Prepared<Private> = Private::prepare;
    let PrivateSizes { m: _, n: _, k: _ } = PrivateSizes { m: 8, n: 8, k: 8 };

    let _: fn(&mkernel::Communicator, u64) -> Prepared<Experts> = Experts::prepare;
    let _: fn(&mkernel::Communicator) -> Prepared<Sums> = Sums::prepare;

    let alone = Alone::config(8, 1);
    assert_eq!(alone.world, 1);
    assert_eq!(gemm(alone).tuning.comm_ctas, Some(8));
    let any = AnyRanks::config(16, 2);
    assert_eq!((any.world, any.nodes), (16, 2));
    let config = Chosen::config(2, 1);
    assert_eq!(
        (config.world, config.nodes),
        (4, 1),
        "the attribute fixes the ranks"
    );
    assert_eq!(config.name.as_deref(), Some("up"));
    let chosen = gemm(config);
    assert_eq!(
        (chosen.m, chosen.n, chosen.k),
        (Dim::Dynamic, Dim::Dynamic, Dim::Static(8192))
    );
    assert_eq!(chosen.b_layout, BLayout::Nk);
    assert_eq!(chosen.tuning.tile_n, Some(128));
    let epilogue = gemm(Finished::config(8, 1)).epilogue;
    assert!(epilogue.bias && epilogue.residual);
    assert_eq!(
        (epilogue.activation, epilogue.output),
        (Activation::Gelu, Some(Dtype::Fp32))
    );
    let local = gemm(Local::config(4, 2));
    assert_eq!(
        (local.op, local.epilogue.activation),
        (GemmOp::Gemm, Activation::Silu)
    );
    let Problem::Collective(sum) = Normalised::config(2, 1).problem else {
        panic!("no collective")
    };
    assert!(sum.epilogue.bias && sum.epilogue.residual);
    assert_eq!(
        (sum.epilogue.norm, sum.epilogue.eps),
        (Norm::Rms, Eps::new(1e-5))
    );
    let from_macro = gemm(FromMacro::config(8, 1));
    assert_eq!(from_macro.tuning.transfer, Some(Transfer::CopyEngine));
    assert_eq!(from_macro.n, Dim::Static(2048));
}

fn gemm(config: KernelConfig) -> GemmConfig {
    *config.problem.gemm().expect("a GEMM")
}
