//! A layer of experts: each token to the two that it chose, through their feed-forward networks, and back, weighted.
//!
//! `dispatch_gemm` carries tokens to their experts and computes silu(x · gate) · (x · up); `combine` brings back the sums.
//! The down projection between them moves nothing between ranks, and mkernel has no operator for it: a GPU program would
//! call any grouped GEMM with `expert_offsets`. Here the CPU multiplies. Results are checked against a reference on the CPU.
//!
//! ```text
//! cargo run --release --example moe                                  # all GPUs of this host, a thread for each
//! MKERNEL_DEVICE=sim cargo run --release --example moe               # simulated GPUs, on any machine
//! torchrun --no-python --nproc-per-node 8 target/release/examples/moe           # a process for each
//! ```

mod common;

use common::{Failure, largest, matrix, random};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::spec::config::all_rows;
use mkernel::{
    CombineShape, Communicator, DispatchShape, FusedKernel, KernelConfig, Operator, fused_kernel,
};
use std::process::ExitCode;

/// Two experts on each of 8 GPUs, gate and up projection in one weight `[2, 128, 128]`.
#[fused_kernel(op = dispatch_gemm, world = 8, experts = 16, top_k = 2, max_tokens = dynamic, hidden = 128,
               intermediate = 64, swiglu = true)]
pub struct Up;

/// What they made of tokens, back at the tokens.
#[fused_kernel(op = combine, world = 8, experts = 16, top_k = 2, max_tokens = dynamic, hidden = 128)]
pub struct Combine;

const EXPERTS: usize = 16;
const TOP_K: usize = 2;
const HIDDEN: usize = 128;
const COLS: usize = 64;
/// Of a rank, at most, and as many as rank 0 has.
const TOKENS: usize = 24;

fn main() -> ExitCode {
    common::run(layer)
}

fn layer(ranks: &Communicator) -> Result<(), Failure> {
    let (up, combine) = prepare(ranks)?;
    let rank = ranks.rank() as usize;
    let local = EXPERTS / ranks.world() as usize;
    let stream = ranks.context().default_stream();
    // Ranks have different numbers of tokens; a kernel reads its own from device memory.
    let tokens = TOKENS - rank;
    let topk_ids = (0..TOKENS).flat_map(|token| choices(rank, token).map(|expert| expert as i32));
    let topk_weights =
        (0..TOKENS).flat_map(|token| (0..TOP_K).map(move |choice| gate(token, choice)));
    let x = matrix(TOKENS as u64, HIDDEN as u64, |t, col| {
        x_element(rank, t as usize, col as usize)
    });
    let w = (rank * local..(rank + 1) * local).flat_map(up_weight);
    let max_rows = all_rows(ranks.world(), EXPERTS as u64, TOP_K as u64, TOKENS as u64) as usize;

    let x = stream.clone_htod(&x)?;
    let num_tokens = stream.clone_htod(&[tokens as i32])?;
    let topk_ids = stream.clone_htod(&topk_ids.collect::<Vec<_>>())?;
    let topk_weights = stream.clone_htod(&topk_weights.collect::<Vec<_>>())?;
    let w = stream.clone_htod(&w.collect::<Vec<_>>())?;
    let mut rows = stream.clone_htod(&vec![bf16::NAN; max_rows * COLS])?;
    let mut expert_offsets = stream.clone_htod(&vec![-1; local + 1])?;
    let mut row_indices = stream.clone_htod(&vec![-1; TOKENS * TOP_K])?;
    let mut y = stream.clone_htod(&vec![bf16::NAN; TOKENS * HIDDEN])?;

    let call = up
        .call(&stream)
        .read(Operand::Tokens, &x)
        .read(Operand::NumTokens, &num_tokens)
        .read(Operand::TopkIds, &topk_ids)
        .read(Operand::B, &w);
    call.write(Operand::C, &mut rows)
        .write(Operand::ExpertOffsets, &mut expert_offsets)
        .write(Operand::RowIndices, &mut row_indices)
        .launch()?;
    ranks.synchronize(&stream)?;

    let (rows, expert_offsets) = (
        stream.clone_dtoh(&rows)?,
        stream.clone_dtoh(&expert_offsets)?,
    );
    let mut down = vec![bf16::ZERO; max_rows * HIDDEN];
    for (index, bounds) in expert_offsets.windows(2).enumerate() {
        for row in bounds[0] as usize..bounds[1] as usize {
            let made = rows[row * COLS..][..COLS].iter().map(|x| x.to_f64());
            let made = project(rank * local + index, &made.collect::<Vec<_>>());
            let out = down[row * HIDDEN..][..HIDDEN].iter_mut();
            out.zip(made).for_each(|(out, x)| *out = bf16::from_f64(x));
        }
    }
    let down = stream.clone_htod(&down)?;

    let call = combine
        .call(&stream)
        .read(Operand::Rows, &down)
        .read(Operand::NumTokens, &num_tokens)
        .read(Operand::RowIndices, &row_indices)
        .read(Operand::TopkWeights, &topk_weights);
    call.write(Operand::C, &mut y).launch()?;
    ranks.synchronize(&stream)?;

    let error = check(rank, tokens, &stream.clone_dtoh(&y)?)?;
    let worst = largest(ranks, error)?;
    if rank == 0 {
        println!(
            "{EXPERTS} experts on {} ranks: largest error {worst:.4}",
            ranks.world()
        );
    }
    Ok(())
}

fn prepare(ranks: &Communicator) -> Result<(Operator, Operator), mkernel::Error> {
    // The types are declared for 8 ranks; a configuration can also be made at run time.
    let here = |config| KernelConfig {
        world: ranks.world(),
        ..config
    };
    let [experts, top_k, max_tokens, hidden, intermediate] =
        [EXPERTS, TOP_K, TOKENS, HIDDEN, COLS].map(|size| size as u64);
    let up = DispatchShape {
        experts,
        top_k,
        max_tokens,
        hidden,
        intermediate,
    };
    let combine = CombineShape {
        experts,
        top_k,
        max_tokens,
        hidden,
    };
    Ok((
        ranks.prepare(&here(Up::config()), up)?,
        ranks.prepare(&here(Combine::config()), combine)?,
    ))
}

/// Compares all tokens with the layer in double precision; returns the largest error.
fn check(rank: usize, tokens: usize, y: &[bf16]) -> Result<f64, Failure> {
    let mut worst: f64 = 0.0;
    for token in 0..tokens {
        let x: Vec<f64> = (0..HIDDEN)
            .map(|col| x_element(rank, token, col).to_f64())
            .collect();
        let mut expected = vec![0.0; HIDDEN];
        for (choice, expert) in choices(rank, token).into_iter().enumerate() {
            let w = up_weight(expert);
            let product = |col: usize| -> f64 {
                let column = w[col..].iter().step_by(2 * COLS);
                x.iter().zip(column).map(|(x, w)| x * w.to_f64()).sum()
            };
            let made: Vec<f64> = (0..COLS)
                .map(|col| product(col) / (1.0 + (-product(col)).exp()) * product(COLS + col))
                .collect();
            let gate = f64::from(gate(token, choice));
            let made = project(expert, &made);
            expected
                .iter_mut()
                .zip(made)
                .for_each(|(y, x)| *y += gate * x);
        }
        for (found, expected) in y[token * HIDDEN..][..HIDDEN].iter().zip(expected) {
            let error = (found.to_f64() - expected).abs();
            // Three roundings to bf16 of numbers below 4.
            if error.is_nan() || error > 0.05 {
                return Err(format!("token {token}: {found} should be {expected}").into());
            }
            worst = worst.max(error);
        }
    }
    Ok(worst)
}

/// Two different experts.
fn choices(rank: usize, token: usize) -> [usize; TOP_K] {
    let first = (rank * 5 + token * 3) % EXPERTS;
    [first, (first + 1 + token % (EXPERTS - 1)) % EXPERTS]
}

fn gate(token: usize, choice: usize) -> f32 {
    let first = 0.25 + (token % 3) as f32 / 4.0;
    if choice == 0 { first } else { 1.0 - first }
}

fn x_element(rank: usize, token: usize, col: usize) -> bf16 {
    random(((rank * TOKENS + token) * HIDDEN + col) as u64)
}

/// `[hidden, gate and up]`, small enough that products are about 1.
fn up_weight(expert: usize) -> Vec<bf16> {
    let at = |i: usize| (1 << 40) + (expert * HIDDEN * 2 * COLS + i) as u64;
    (0..HIDDEN * 2 * COLS)
        .map(|i| bf16::from_f32(random(at(i)).to_f32() / 4.0))
        .collect()
}

/// A row through the down projection `[intermediate, hidden]` of an expert.
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
