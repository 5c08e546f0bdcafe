//! A feed-forward block of a transformer under tensor and sequence parallelism:
//!
//! ```text
//! U = gelu(X · W1ᵀ + b1)        ag_gemm: gathers X while it multiplies, with the bias and the activation
//! Y = U · W2ᵀ + b2 + X          gemm_rs: reduces over ranks while it multiplies, with the bias and the residual
//! ```
//!
//! Each rank has its tokens of X and Y, its rows of W1 and b1 (its part of the hidden features), and its columns of W2.
//! A forward pass is two kernels, without a call of NCCL, and without a pass over U or Y for bias, activation or residual.
//! The example compares the result with a reference on the CPU.
//!
//! ```text
//! cargo run --release --example mlp                              # a thread for each GPU of this host
//! MKERNEL_DEVICE=sim cargo run --release --example mlp           # simulated GPUs, on any machine
//! torchrun --no-python --nproc-per-node 8 target/release/examples/mlp       # a process for each GPU
//! ```

mod common;

use common::{Failure, largest, matrix, random};
use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::{Communicator, fused_kernel};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Computes U [tokens, 1024] from X [tokens / ranks, 2048] on each rank.
#[fused_kernel(
    op = ag_gemm, m = dynamic, n = 1024, k = 2048, b_layout = nk,
    bias = true, activation = gelu,
)]
pub struct UpProjection;

/// Computes Y [tokens / ranks, 2048] from U [tokens, 1024] on each rank.
#[fused_kernel(
    op = gemm_rs, m = dynamic, n = 2048, k = 1024, b_layout = nk,
    bias = true, residual = true,
)]
pub struct DownProjection;

const FEATURES: u64 = 2048;
/// The number of hidden features of one rank.
const HIDDEN: u64 = 1024;

/// Returns the number of tokens of all ranks and the number of timed calls. Simulated GPUs get small numbers, since
/// they run on a CPU.
fn size(ranks: &Communicator) -> (u64, u32) {
    if ranks.is_simulated() {
        (64, 1)
    } else {
        (8192, 20)
    }
}

fn main() -> ExitCode {
    common::run(block)
}

/// The block on one rank: its kernels and its weights.
struct Block {
    up: UpProjection,
    down: DownProjection,
    w1: CudaSlice<bf16>,
    b1: CudaSlice<bf16>,
    w2: CudaSlice<bf16>,
    b2: CudaSlice<bf16>,
    /// The activations between the two kernels.
    u: CudaSlice<bf16>,
}

impl Block {
    fn new(ranks: &Communicator, stream: &Arc<CudaStream>) -> Result<Self, Failure> {
        let rank = u64::from(ranks.rank());
        let (tokens, _) = size(ranks);
        let upload = |values: Vec<bf16>| stream.clone_htod(&values);
        Ok(Self {
            up: UpProjection::prepare(ranks, tokens)?,
            down: DownProjection::prepare(ranks, tokens)?,
            w1: upload(matrix(HIDDEN, FEATURES, |h, f| w1(rank * HIDDEN + h, f)))?,
            b1: upload(matrix(1, HIDDEN, |_, h| b1(rank * HIDDEN + h)))?,
            w2: upload(matrix(FEATURES, HIDDEN, |f, h| w2(f, rank * HIDDEN + h)))?,
            b2: upload(matrix(1, FEATURES, |_, f| b2(f)))?,
            u: stream.alloc_zeros((tokens * HIDDEN) as usize)?,
        })
    }

    /// Computes `y` = MLP(`x`) + `x`. Enqueues two kernels and does not wait for them.
    fn forward(
        &mut self,
        stream: &Arc<CudaStream>,
        x: &CudaSlice<bf16>,
        y: &mut CudaSlice<bf16>,
    ) -> Result<(), mkernel::Error> {
        let up = UpProjectionOperands {
            a: x,
            b: &self.w1,
            c: &mut self.u,
            bias: &self.b1,
        };
        self.up.launch(stream, up)?;
        let down = DownProjectionOperands {
            a: &self.u,
            b: &self.w2,
            c: y,
            bias: &self.b2,
            residual: x,
        };
        self.down.launch(stream, down)
    }
}

fn block(ranks: &Communicator) -> Result<(), Failure> {
    let stream = ranks.default_stream();
    let (tokens, calls) = size(ranks);
    let own_tokens = tokens / u64::from(ranks.world());
    let first = u64::from(ranks.rank()) * own_tokens;
    let mut block = Block::new(ranks, &stream)?;
    let x = stream.clone_htod(&matrix(own_tokens, FEATURES, |row, f| x(first + row, f)))?;
    // Elements that the kernels do not write stay NaN.
    let mut y = stream.clone_htod(&vec![bf16::NAN; (own_tokens * FEATURES) as usize])?;

    block.forward(&stream, &x, &mut y)?;
    ranks.synchronize(&stream)?;
    let hidden = HIDDEN * u64::from(ranks.world());
    let error = check(&stream.clone_dtoh(&y)?, first, own_tokens, hidden)?;

    ranks.barrier()?;
    let started = Instant::now();
    for _ in 0..calls {
        block.forward(&stream, &x, &mut y)?;
    }
    ranks.synchronize(&stream)?;
    let us = started.elapsed().as_secs_f64() * 1e6 / f64::from(calls);
    let slowest_us = largest(ranks, us)?;
    println!("rank {}: largest error {error:.4}", ranks.rank());
    if ranks.rank() == 0 && !ranks.is_simulated() {
        println!("{slowest_us:.1} µs per block of {tokens} tokens");
    }
    Ok(())
}

/// Compares some columns of the rank's first and last token with a reference. Returns the largest error.
fn check(y: &[bf16], first: u64, own_tokens: u64, hidden: u64) -> Result<f64, Failure> {
    let mut largest: f64 = 0.0;
    for row in [0, own_tokens - 1] {
        let token = first + row;
        // The kernel rounds U to bf16.
        let u: Vec<f64> = (0..hidden)
            .map(|h| {
                let sum = dot(FEATURES, |f| (x(token, f), w1(h, f))) + b1(h).to_f64();
                bf16::from_f32(gelu(sum) as f32)
            })
            .map(bf16::to_f64)
            .collect();
        for col in (0..FEATURES).step_by(127) {
            let terms = u.iter().zip(0..).map(|(u, h)| u * w2(col, h).to_f64());
            let wanted = terms.sum::<f64>() + b2(col).to_f64() + x(token, col).to_f64();
            let found = y[(row * FEATURES + col) as usize].to_f64();
            let error = (found - wanted).abs();
            // Half a unit in the last place of a bf16, plus the rounding errors of the ranks' partial sums.
            if error.is_nan() || error > wanted.abs() / 256.0 + 0.02 {
                return Err(format!("y[{token}, {col}] is {found}, but expected {wanted}").into());
            }
            largest = largest.max(error);
        }
    }
    Ok(largest)
}

fn dot(terms: u64, factors: impl Fn(u64) -> (bf16, bf16)) -> f64 {
    let product = |(a, b): (bf16, bf16)| a.to_f64() * b.to_f64();
    (0..terms).map(|i| product(factors(i))).sum()
}

/// Returns x Φ(x), where the distribution function Φ is computed by a series.
fn gelu(x: f64) -> f64 {
    if x.abs() > 7.0 {
        return x.max(0.0);
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while f64::abs(term) > 1e-18 {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    x * (0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt())
}

// Elements of the tokens and weights of all ranks. The weights are small, so that U and Y are near 1.

fn x(token: u64, feature: u64) -> bf16 {
    random(token * FEATURES + feature)
}

fn w1(hidden: u64, feature: u64) -> bf16 {
    random((1 << 40) + hidden * FEATURES + feature) / bf16::from_f32(16.0)
}

fn b1(hidden: u64) -> bf16 {
    random((2 << 40) + hidden)
}

fn w2(feature: u64, hidden: u64) -> bf16 {
    random((3 << 40) + (feature << 20) + hidden) / bf16::from_f32(32.0)
}

fn b2(feature: u64) -> bf16 {
    random((4 << 40) + feature)
}
