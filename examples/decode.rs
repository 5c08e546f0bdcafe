//! Decoding with batches of any size through one captured graph of four feed-forward blocks under tensor and sequence
//! parallelism. A block has two kernels, which read the number of tokens when they start.
//!
//! ```text
//! U = relu(X · W1ᵀ)        ag_gemm: gathers X while it multiplies
//! X = U · W2ᵀ + X          gemm_rs: reduces over ranks while it multiplies
//! ```
//!
//! The program captures the graph once, for at most 512 tokens. Before each replay it writes the number of tokens to a word
//! of device memory. It compares some tokens of each result with a reference on the CPU.
//!
//! ```text
//! cargo run --release --example decode                              # a thread for each GPU of this host
//! MKERNEL_DEVICE=sim cargo run --release --example decode           # simulated GPUs, on any machine
//! torchrun --no-python --nproc-per-node 8 target/release/examples/decode    # a process for each GPU
//! ```

mod common;

use common::{Failure, largest, matrix, random};
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::{Communicator, fused_kernel};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Computes U [tokens, 256] from X [⌈tokens / ranks⌉, 512] on each rank.
#[fused_kernel(op = ag_gemm, m = dynamic, n = 256, k = 512, b_layout = nk, activation = relu)]
pub struct UpProjection;

/// Computes X [⌈tokens / ranks⌉, 512] from U [tokens, 256] on each rank.
#[fused_kernel(op = gemm_rs, m = dynamic, n = 512, k = 256, b_layout = nk, residual = true)]
pub struct DownProjection;

const FEATURES: u64 = 512;
/// The number of hidden features of one rank.
const HIDDEN: u64 = 256;
const LAYERS: u64 = 4;

/// Returns the most tokens of a batch, and the number of batches. Simulated GPUs get small numbers, since they run on a CPU.
fn size(ranks: &Communicator) -> (u64, u64) {
    if ranks.is_simulated() {
        (48, 4)
    } else {
        (512, 200)
    }
}

fn main() -> ExitCode {
    common::run(decode)
}

/// The blocks on one rank: their kernels, which all layers share, and the weights of each layer.
struct Model {
    up: UpProjection,
    down: DownProjection,
    w1: Vec<CudaSlice<bf16>>,
    w2: Vec<CudaSlice<bf16>>,
}

/// The inputs and results of a step, at the addresses in the graph.
struct Buffers {
    /// The number of tokens.
    tokens: CudaSlice<i32>,
    /// The input and output of even layers, which are the output and input of odd layers.
    x: [CudaSlice<bf16>; 2],
    /// The activations between the two kernels of a layer.
    u: CudaSlice<bf16>,
}

impl Model {
    fn new(ranks: &Communicator, stream: &Arc<CudaStream>) -> Result<Self, Failure> {
        let (rank, (most, _)) = (u64::from(ranks.rank()), size(ranks));
        let upload = |values: Vec<bf16>| stream.clone_htod(&values);
        let w1 = |layer| {
            upload(matrix(HIDDEN, FEATURES, |h, f| {
                w1(layer, rank * HIDDEN + h, f)
            }))
        };
        let w2 = |layer| {
            upload(matrix(FEATURES, HIDDEN, |f, h| {
                w2(layer, f, rank * HIDDEN + h)
            }))
        };
        Ok(Self {
            up: UpProjection::prepare(ranks, most)?,
            down: DownProjection::prepare(ranks, most)?,
            w1: (0..LAYERS).map(w1).collect::<Result<_, _>>()?,
            w2: (0..LAYERS).map(w2).collect::<Result<_, _>>()?,
        })
    }

    /// Captures all layers. The result of the last one is in `x[0]`.
    fn capture(
        &self,
        stream: &Arc<CudaStream>,
        buffers: &mut Buffers,
    ) -> Result<CudaGraph, Failure> {
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let Buffers { tokens, x, u } = buffers;
        for (layer, (w1, w2)) in self.w1.iter().zip(&self.w2).enumerate() {
            let [even, odd] = x;
            let (x, y) = if layer % 2 == 0 {
                (even, odd)
            } else {
                (odd, even)
            };
            let up = UpProjectionOperands {
                a: &*x,
                b: w1,
                c: &mut *u,
            };
            // SAFETY: the buffers and weights live as long as the graph, and all work on them is in this stream.
            unsafe { self.up.call(stream, up).rows_in(tokens).capture()? };
            let down = DownProjectionOperands {
                a: &*u,
                b: w2,
                c: y,
                residual: &*x,
            };
            // SAFETY: as above.
            unsafe { self.down.call(stream, down).rows_in(tokens).capture()? };
        }
        let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
        graph.ok_or_else(|| "nothing was captured".into())
    }
}

fn decode(ranks: &Communicator) -> Result<(), Failure> {
    // The default stream cannot be captured.
    let stream = ranks.context().new_stream()?;
    let (most, batches) = size(ranks);
    let model = Model::new(ranks, &stream)?;
    let own_most = most.div_ceil(u64::from(ranks.world()));
    let rows = || stream.alloc_zeros::<bf16>((own_most * FEATURES) as usize);
    let mut buffers = Buffers {
        tokens: stream.alloc_zeros(1)?,
        x: [rows()?, rows()?],
        u: stream.alloc_zeros((most * HIDDEN) as usize)?,
    };
    stream.synchronize()?;
    let graph = model.capture(&stream, &mut buffers)?;
    let (mut error, mut us) = (0f64, 0f64);
    for batch in 0..batches {
        let tokens = 1 + number(batch) % most;
        let own = tokens.div_ceil(u64::from(ranks.world()));
        let first = u64::from(ranks.rank()) * own;
        let own = own.min(tokens.saturating_sub(first));
        let x = matrix(own_most, FEATURES, |row, f| x(batch, first + row, f));
        stream.memcpy_htod(&x, &mut buffers.x[0])?;
        stream.memcpy_htod(&[tokens as i32], &mut buffers.tokens)?;
        ranks.synchronize(&stream)?;
        ranks.barrier()?;
        let started = Instant::now();
        graph.launch()?;
        ranks.synchronize(&stream)?;
        us += started.elapsed().as_secs_f64() * 1e6 / batches as f64;
        let result = stream.clone_dtoh(&buffers.x[0])?;
        error = error.max(check(ranks, batch, (first, own), &result)?);
    }
    let slowest_us = largest(ranks, us)?;
    println!(
        "rank {}: {batches} batches, largest error {error:.4}",
        ranks.rank()
    );
    if ranks.rank() == 0 && !ranks.is_simulated() {
        println!("{slowest_us:.1} µs per batch of 1 to {most} tokens");
    }
    Ok(())
}

/// Compares the rank's first and last token with a reference. Returns the largest error.
fn check(
    ranks: &Communicator,
    batch: u64,
    (first, own): (u64, u64),
    result: &[bf16],
) -> Result<f64, Failure> {
    let mut largest: f64 = 0.0;
    let hidden = HIDDEN * u64::from(ranks.world());
    for row in [0, own.saturating_sub(1)] {
        if own == 0 {
            continue;
        }
        let wanted = reference(batch, first + row, hidden);
        for (feature, wanted) in wanted.into_iter().enumerate() {
            let found = result[row as usize * FEATURES as usize + feature].to_f64();
            let error = (found - wanted).abs();
            // Each of four layers rounds U, the ranks' partial sums and X to bf16.
            if error.is_nan() || error > wanted.abs() / 32.0 + 0.08 {
                let token = first + row;
                return Err(format!(
                    "token {token}, feature {feature} of batch {batch} is {found}, not {wanted}"
                )
                .into());
            }
            largest = largest.max(error);
        }
    }
    Ok(largest)
}

/// Computes a token's features after the last layer, rounded to bf16 as in the kernels.
fn reference(batch: u64, token: u64, hidden: u64) -> Vec<f64> {
    let rounded = |value: f64| bf16::from_f32(value as f32).to_f64();
    let mut x: Vec<f64> = (0..FEATURES).map(|f| x(batch, token, f).to_f64()).collect();
    for layer in 0..LAYERS {
        let dot = |values: &[f64], weight: &dyn Fn(u64) -> bf16| {
            let terms = values
                .iter()
                .zip(0..)
                .map(|(value, i)| value * weight(i).to_f64());
            terms.sum::<f64>()
        };
        let u: Vec<f64> = (0..hidden)
            .map(|h| rounded(dot(&x, &|f| w1(layer, h, f)).max(0.0)))
            .collect();
        x = (0..FEATURES)
            .zip(&x)
            .map(|(f, x)| rounded(dot(&u, &|h| w2(layer, f, h)) + x))
            .collect();
    }
    x
}

/// Returns a number that looks random.
fn number(index: u64) -> u64 {
    let mixed = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
}

// Elements of the tokens and weights of all ranks.

fn x(batch: u64, token: u64, feature: u64) -> bf16 {
    random((batch << 20) + token * FEATURES + feature)
}

fn w1(layer: u64, hidden: u64, feature: u64) -> bf16 {
    random((1 << 40) + (layer << 32) + hidden * FEATURES + feature) / bf16::from_f32(16.0)
}

fn w2(layer: u64, feature: u64, hidden: u64) -> bf16 {
    random((2 << 40) + (layer << 32) + (feature << 16) + hidden) / bf16::from_f32(32.0)
}
