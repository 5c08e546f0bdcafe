//! A layer of a mixture of experts with two experts per token.
//!
//! In one launch, `moe_layer` sends tokens to their experts, computes down · (silu(x · gate) · (x · up)) there, and returns
//! the sums of the experts' results, weighted by the router. The example compares the result with a reference on the CPU.
//!
//! ```text
//! cargo run --release --example moe                                  # a thread for each GPU of this host
//! MKERNEL_DEVICE=sim cargo run --release --example moe               # simulated GPUs, on any machine
//! torchrun --no-python --nproc-per-node 8 target/release/examples/moe           # a process for each GPU
//! ```

mod common;

use common::{Failure, largest, matrix, random};
use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel::{Communicator, fused_kernel};
use std::process::ExitCode;

/// The experts of each GPU. The gate and up projections are one weight `[experts / ranks, 128, 128]`, and the down
/// projections are `[experts / ranks, 64, 128]`.
#[fused_kernel(op = moe_layer, experts = 16, top_k = 2, max_tokens = dynamic, hidden = 128,
               intermediate = 64, swiglu = true)]
pub struct Layer;

const EXPERTS: usize = 16;
const TOP_K: usize = 2;
const HIDDEN: usize = 128;
const COLS: usize = 64;
/// The most tokens of a rank, which rank 0 has.
const TOKENS: usize = 24;

fn main() -> ExitCode {
    common::run(layer)
}

/// The operands of the layer on one rank, in device memory.
struct Operands {
    x: CudaSlice<bf16>,
    num_tokens: CudaSlice<i32>,
    topk_ids: CudaSlice<i32>,
    topk_weights: CudaSlice<f32>,
    /// The gate and up projections of this rank's experts.
    gate_up: CudaSlice<bf16>,
    down: CudaSlice<bf16>,
    y: CudaSlice<bf16>,
}

impl Operands {
    /// Uploads the operands of a rank with `tokens` tokens. Elements that the kernels do not write stay NaN or -1.
    fn new(ranks: &Communicator, tokens: usize) -> Result<Self, Failure> {
        let stream = ranks.default_stream();
        let rank = ranks.rank() as usize;
        let local = local_experts(ranks);
        let x = matrix(TOKENS as u64, HIDDEN as u64, |t, col| {
            x_element(rank, t as usize, col as usize)
        });
        let topk_ids =
            (0..TOKENS).flat_map(|token| experts(rank, token).map(|expert| expert as i32));
        let topk_weights =
            (0..TOKENS).flat_map(|token| (0..TOP_K).map(move |entry| topk_weight(token, entry)));
        let own = rank * local..(rank + 1) * local;
        let gate_up = own.clone().flat_map(up_weight);
        let down = own.flat_map(down_weight);
        Ok(Self {
            x: stream.clone_htod(&x)?,
            num_tokens: stream.clone_htod(&[tokens as i32])?,
            topk_ids: stream.clone_htod(&topk_ids.collect::<Vec<_>>())?,
            topk_weights: stream.clone_htod(&topk_weights.collect::<Vec<_>>())?,
            gate_up: stream.clone_htod(&gate_up.collect::<Vec<_>>())?,
            down: stream.clone_htod(&down.collect::<Vec<_>>())?,
            y: stream.clone_htod(&vec![bf16::NAN; TOKENS * HIDDEN])?,
        })
    }
}

fn local_experts(ranks: &Communicator) -> usize {
    EXPERTS / ranks.world() as usize
}

fn layer(ranks: &Communicator) -> Result<(), Failure> {
    let layer = Layer::prepare(ranks, TOKENS as u64)?;
    let rank = ranks.rank() as usize;
    let stream = ranks.default_stream();
    // Ranks have different numbers of tokens, which kernels read from device memory.
    let tokens = TOKENS - rank;
    let mut operands = Operands::new(ranks, tokens)?;

    let call = LayerOperands {
        tokens: &operands.x,
        num_tokens: &operands.num_tokens,
        topk_ids: &operands.topk_ids,
        topk_weights: &operands.topk_weights,
        b: &operands.gate_up,
        down: &operands.down,
        c: &mut operands.y,
    };
    layer.launch(&stream, call)?;
    ranks.synchronize(&stream)?;

    let error = check(rank, tokens, &stream.clone_dtoh(&operands.y)?)?;
    let worst = largest(ranks, error)?;
    if rank == 0 {
        println!(
            "{EXPERTS} experts on {} ranks: largest error {worst:.4}",
            ranks.world()
        );
    }
    Ok(())
}

/// Compares all tokens with the layer in double precision. Returns the largest error.
fn check(rank: usize, tokens: usize, y: &[bf16]) -> Result<f64, Failure> {
    let mut worst: f64 = 0.0;
    for token in 0..tokens {
        let x: Vec<f64> = (0..HIDDEN)
            .map(|col| x_element(rank, token, col).to_f64())
            .collect();
        let mut expected = vec![0.0; HIDDEN];
        for (entry, expert) in experts(rank, token).into_iter().enumerate() {
            let w = up_weight(expert);
            let product = |col: usize| -> f64 {
                let column = w[col..].iter().step_by(2 * COLS);
                x.iter().zip(column).map(|(x, w)| x * w.to_f64()).sum()
            };
            let hidden: Vec<f64> = (0..COLS)
                .map(|col| product(col) / (1.0 + (-product(col)).exp()) * product(COLS + col))
                .collect();
            let weight = f64::from(topk_weight(token, entry));
            let projected = project(expert, &hidden);
            expected
                .iter_mut()
                .zip(projected)
                .for_each(|(y, x)| *y += weight * x);
        }
        for (found, expected) in y[token * HIDDEN..][..HIDDEN].iter().zip(expected) {
            let error = (found.to_f64() - expected).abs();
            // The limit allows for three roundings to bf16 of numbers below 4.
            if error.is_nan() || error > 0.05 {
                return Err(format!("token {token}: {found}, but expected {expected}").into());
            }
            worst = worst.max(error);
        }
    }
    Ok(worst)
}

/// Returns the two different experts of a token.
fn experts(rank: usize, token: usize) -> [usize; TOP_K] {
    let first = (rank * 5 + token * 3) % EXPERTS;
    [first, (first + 1 + token % (EXPERTS - 1)) % EXPERTS]
}

/// Returns the router's weight of an entry. The weights of a token add up to 1.
fn topk_weight(token: usize, entry: usize) -> f32 {
    let first = 0.25 + (token % 3) as f32 / 4.0;
    if entry == 0 { first } else { 1.0 - first }
}

fn x_element(rank: usize, token: usize, col: usize) -> bf16 {
    random(((rank * TOKENS + token) * HIDDEN + col) as u64)
}

/// Returns the gate and up projection `[hidden, gate and up]` of an expert. Its elements are small, so that products
/// are about 1.
fn up_weight(expert: usize) -> Vec<bf16> {
    let at = |i: usize| (1 << 40) + (expert * HIDDEN * 2 * COLS + i) as u64;
    (0..HIDDEN * 2 * COLS)
        .map(|i| bf16::from_f32(random(at(i)).to_f32() / 4.0))
        .collect()
}

/// Returns the down projection `[intermediate, hidden]` of an expert.
fn down_weight(expert: usize) -> Vec<bf16> {
    let at = |i: usize| (2 << 40) + (expert * COLS * HIDDEN + i) as u64;
    (0..COLS * HIDDEN)
        .map(|i| bf16::from_f32(random(at(i)).to_f32() / 4.0))
        .collect()
}

/// Multiplies a row by the down projection of an expert.
fn project(expert: usize, row: &[f64]) -> Vec<f64> {
    let down = down_weight(expert);
    let column = |col: usize| down[col..].iter().step_by(HIDDEN);
    (0..HIDDEN)
        .map(|col| {
            row.iter()
                .zip(column(col))
                .map(|(x, w)| x * w.to_f64())
                .sum()
        })
        .collect()
}
