//! The forward pass of a linear layer under tensor parallelism: Y = X · Wᵀ.
//!
//! The ranks shard the rows of X (tokens) and the rows of W. Each rank gathers X while it multiplies, and computes its
//! columns of Y for all tokens. The example compares the result with a reference on the CPU.
//!
//! ```text
//! cargo run --release --example ag_gemm                              # a thread for each GPU of this host
//! MKERNEL_DEVICE=sim cargo run --release --example ag_gemm           # simulated GPUs, on any machine
//! torchrun --no-python --nproc-per-node 8 target/release/examples/ag_gemm       # a process for each GPU
//! ```
//!
//! For several hosts with RDMA, build with `--features mkernel/verbs`, or on AWS with `--features mkernel/efa`. Run this
//! command on each host, on AWS with `MKERNEL_TRANSPORT=efa`:
//!
//! ```text
//! torchrun --no-python --nnodes 2 --node-rank $N --master-addr $HOST --nproc-per-node 8 target/release/examples/ag_gemm
//! ```

mod common;

use common::{Failure, largest, matrix, random};
use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel::{Communicator, fused_kernel};
use std::process::ExitCode;
use std::time::Instant;

/// The up projection of a feed-forward block, with 4096 input features, and 1024 output features on each rank.
#[fused_kernel(op = ag_gemm, m = dynamic, n = 1024, k = 4096, b_layout = nk)]
pub struct UpProjection;

const FEATURES: u64 = 4096;
const OUTPUTS: u64 = 1024;

/// Returns the number of tokens of all ranks and the number of timed calls. Simulated GPUs get small numbers, since
/// they run on a CPU.
fn size(ranks: &Communicator) -> (u64, u32) {
    if ranks.is_simulated() {
        (64, 1)
    } else {
        (4096, 20)
    }
}

fn main() -> ExitCode {
    common::run(forward)
}

fn forward(ranks: &Communicator) -> Result<(), Failure> {
    let (tokens, _) = size(ranks);
    let up_projection = UpProjection::prepare(ranks, tokens)?;
    let stream = ranks.default_stream();
    let rank = u64::from(ranks.rank());
    let shard_rows = tokens / u64::from(ranks.world());

    let x: Vec<bf16> = matrix(shard_rows, FEATURES, |row, col| {
        token(rank * shard_rows + row, col)
    });
    let w: Vec<bf16> = matrix(OUTPUTS, FEATURES, |row, col| weight(rank, row, col));
    let (x, w) = (stream.clone_htod(&x)?, stream.clone_htod(&w)?);
    // Elements that the kernel does not write stay NaN.
    let mut y = stream.clone_htod(&vec![bf16::NAN; (tokens * OUTPUTS) as usize])?;

    let operands = UpProjectionOperands {
        a: &x,
        b: &w,
        c: &mut y,
    };
    up_projection.launch(&stream, operands)?;
    ranks.synchronize(&stream)?;
    let error = check(&stream.clone_dtoh(&y)?, tokens, rank)?;
    let call_us = time(ranks, &up_projection, &x, &w, &mut y)?;

    let slowest_us = largest(ranks, call_us)?;
    println!("rank {rank}: largest error {error:.4}");
    if rank == 0 && !ranks.is_simulated() {
        let plan = up_projection.plan();
        let tflops = plan.body().traffic.flops as f64 / slowest_us / 1e6;
        println!(
            "{}: {slowest_us:.1} µs per call, {tflops:.0} TFLOP/s per GPU",
            plan.id
        );
    }
    Ok(())
}

/// Returns the mean time in µs of back-to-back calls, after a warm-up call.
fn time(
    ranks: &Communicator,
    layer: &UpProjection,
    x: &CudaSlice<bf16>,
    w: &CudaSlice<bf16>,
    y: &mut CudaSlice<bf16>,
) -> Result<f64, Failure> {
    let stream = ranks.default_stream();
    let mut call = || layer.launch(&stream, UpProjectionOperands { a: x, b: w, c: y });
    call()?;
    ranks.synchronize(&stream)?;
    ranks.barrier()?;
    let (_, calls) = size(ranks);
    let started = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    ranks.synchronize(&stream)?;
    Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}

/// Compares sampled rows and columns with products summed in double precision. Returns the largest error.
fn check(y: &[bf16], tokens: u64, rank: u64) -> Result<f64, Failure> {
    let mut largest: f64 = 0.0;
    for row in (0..tokens).step_by(61) {
        for col in (0..OUTPUTS).step_by(127) {
            let reference: f64 = (0..FEATURES)
                .map(|k| token(row, k).to_f64() * weight(rank, col, k).to_f64())
                .sum();
            let found = y[(row * OUTPUTS + col) as usize].to_f64();
            let error = (found - reference).abs();
            // Half a unit in the last place of a bf16, plus the error of a sum in fp32.
            if error.is_nan() || error > reference.abs() / 256.0 + 0.01 {
                return Err(format!(
                    "y[{row}, {col}] is {found} on rank {rank}, but expected {reference}"
                )
                .into());
            }
            largest = largest.max(error);
        }
    }
    Ok(largest)
}

fn token(row: u64, feature: u64) -> bf16 {
    random(row * FEATURES + feature)
}

fn weight(rank: u64, output: u64, feature: u64) -> bf16 {
    random((1 << 40) + (rank * OUTPUTS + output) * FEATURES + feature)
}
