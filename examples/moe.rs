//! A layer of a mixture of experts with two experts per token.
//!
//! `dispatch_gemm` sends tokens to their experts and computes silu(x · gate) · (x · up) there. `combine` returns the
//! sums of the experts' outputs, weighted by the router. The down projection between the two operators needs no
//! communication, and mkernel has no operator for it. A program would call any grouped GEMM with `expert_offsets`. In
//! this example the CPU multiplies. The result is compared with a reference on the CPU.
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
use mkernel::spec::config::all_rows;
use mkernel::{Communicator, fused_kernel};
use std::process::ExitCode;

/// Gate and up projections of the experts of each GPU. They are one weight `[experts / ranks, 128, 128]`.
#[fused_kernel(op = dispatch_gemm, experts = 16, top_k = 2, max_tokens = dynamic, hidden = 128,
               intermediate = 64, swiglu = true)]
pub struct Up;

/// The weighted sums of the experts' outputs.
#[fused_kernel(op = combine, experts = 16, top_k = 2, max_tokens = dynamic, hidden = 128)]
pub struct Combine;

const EXPERTS: usize = 16;
const TOP_K: usize = 2;
const HIDDEN: usize = 128;
const COLS: usize = 64;
/// The largest number of tokens of a rank. Rank 0 has this number.
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
    w: CudaSlice<bf16>,
    /// The outputs of the gate and up projections, grouped by expert.
    rows: CudaSlice<bf16>,
    expert_offsets: CudaSlice<i32>,
    row_indices: CudaSlice<i32>,
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
        let w = (rank * local..(rank + 1) * local).flat_map(up_weight);
        Ok(Self {
            x: stream.clone_htod(&x)?,
            num_tokens: stream.clone_htod(&[tokens as i32])?,
            topk_ids: stream.clone_htod(&topk_ids.collect::<Vec<_>>())?,
            topk_weights: stream.clone_htod(&topk_weights.collect::<Vec<_>>())?,
            w: stream.clone_htod(&w.collect::<Vec<_>>())?,
            rows: stream.clone_htod(&vec![bf16::NAN; max_rows(ranks) * COLS])?,
            expert_offsets: stream.clone_htod(&vec![-1; local + 1])?,
            row_indices: stream.clone_htod(&vec![-1; TOKENS * TOP_K])?,
            y: stream.clone_htod(&vec![bf16::NAN; TOKENS * HIDDEN])?,
        })
    }
}

fn local_experts(ranks: &Communicator) -> usize {
    EXPERTS / ranks.world() as usize
}

/// Returns the largest number of rows that the experts of a rank can have.
fn max_rows(ranks: &Communicator) -> usize {
    all_rows(ranks.world(), EXPERTS as u64, TOP_K as u64, TOKENS as u64) as usize
}

fn layer(ranks: &Communicator) -> Result<(), Failure> {
    let up = Up::prepare(ranks, TOKENS as u64)?;
    let combine = Combine::prepare(ranks, TOKENS as u64)?;
    let rank = ranks.rank() as usize;
    let stream = ranks.default_stream();
    // Ranks have different numbers of tokens. A kernel reads its own number from device memory.
    let tokens = TOKENS - rank;
    let mut operands = Operands::new(ranks, tokens)?;

    let call = UpOperands {
        tokens: &operands.x,
        num_tokens: &operands.num_tokens,
        topk_ids: &operands.topk_ids,
        b: &operands.w,
        c: &mut operands.rows,
        expert_offsets: &mut operands.expert_offsets,
        row_indices: &mut operands.row_indices,
    };
    up.launch(&stream, call)?;
    ranks.synchronize(&stream)?;

    let down = stream.clone_htod(&down_projection(ranks, &operands)?)?;
    let call = CombineOperands {
        rows: &down,
        num_tokens: &operands.num_tokens,
        row_indices: &operands.row_indices,
        topk_weights: &operands.topk_weights,
        c: &mut operands.y,
    };
    combine.launch(&stream, call)?;
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

/// Multiplies the rows of each expert by its down projection, on the CPU.
fn down_projection(ranks: &Communicator, operands: &Operands) -> Result<Vec<bf16>, Failure> {
    let stream = ranks.default_stream();
    let rows = stream.clone_dtoh(&operands.rows)?;
    let expert_offsets = stream.clone_dtoh(&operands.expert_offsets)?;
    let first = ranks.rank() as usize * local_experts(ranks);
    let mut down = vec![bf16::ZERO; max_rows(ranks) * HIDDEN];
    for (index, bounds) in expert_offsets.windows(2).enumerate() {
        for row in bounds[0] as usize..bounds[1] as usize {
            let hidden = rows[row * COLS..][..COLS].iter().map(|x| x.to_f64());
            let projected = project(first + index, &hidden.collect::<Vec<_>>());
            let out = down[row * HIDDEN..][..HIDDEN].iter_mut();
            out.zip(projected)
                .for_each(|(out, x)| *out = bf16::from_f32(x as f32));
        }
    }
    Ok(down)
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

/// Multiplies a row by the down projection `[intermediate, hidden]` of an expert.
fn project(expert: usize, row: &[f64]) -> Vec<f64> {
    let at = |i: usize, col| (2 << 40) + ((expert * COLS + i) * HIDDEN + col) as u64;
    (0..HIDDEN)
        .map(|col| {
            let terms = row.iter().enumerate();
            terms
                .map(|(i, x)| x * random(at(i, col)).to_f64() / 4.0)
                .sum()
        })
        .collect()
}
