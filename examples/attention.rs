//! Causal attention over a sequence that is sharded over the ranks.
//!
//! The zigzag placement of the sequence balances work across ranks under the mask. The example compares the result with
//! a reference on the CPU.
//!
//! ```text
//! cargo run --release --example attention                            # a thread for each GPU of this host
//! MKERNEL_DEVICE=sim cargo run --release --example attention         # simulated GPUs, on any machine
//! torchrun --no-python --nproc-per-node 8 target/release/examples/attention     # a process for each GPU
//! ```

mod common;

use common::{Failure, largest, matrix, random};
use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel::{Communicator, fused_kernel, spec::Placement};
use std::process::ExitCode;
use std::time::Instant;

/// The attention of one layer, with 8 heads of Q and 2 heads of K and V.
#[fused_kernel(op = ring_attention, batch = 1, seq = dynamic, heads = 8, kv_heads = 2, head_dim = 128,
               causal = true, placement = zigzag)]
pub struct Attention;

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 128;

/// The operands of a rank.
struct Operands {
    q: CudaSlice<bf16>,
    k: CudaSlice<bf16>,
    v: CudaSlice<bf16>,
    o: CudaSlice<bf16>,
    lse: CudaSlice<f32>,
}

/// Returns the length of the sequence and the number of timed calls. Simulated GPUs get small numbers, since they run
/// on a CPU.
fn size(ranks: &Communicator) -> (usize, u32) {
    match ranks.is_simulated() {
        true => (16 * ranks.world() as usize, 1),
        false => (4096 * ranks.world() as usize, 20),
    }
}

fn main() -> ExitCode {
    common::run(attend)
}

fn attend(ranks: &Communicator) -> Result<(), Failure> {
    let attention = Attention::prepare(ranks, size(ranks).0 as u64)?;
    let positions = positions(ranks);
    let stream = ranks.default_stream();
    let tensor = |heads: usize, number| -> Vec<bf16> {
        matrix(positions.len() as u64, (heads * DIM) as u64, |row, col| {
            element(number, positions[row as usize], heads, col as usize)
        })
    };
    // The operands are `[1, S, H, D]` of this rank. Elements that the kernel does not write stay NaN.
    let mut operands = Operands {
        q: stream.clone_htod(&tensor(HEADS, 0))?,
        k: stream.clone_htod(&tensor(KV_HEADS, 1))?,
        v: stream.clone_htod(&tensor(KV_HEADS, 2))?,
        o: stream.clone_htod(&vec![bf16::NAN; positions.len() * HEADS * DIM])?,
        lse: stream.clone_htod(&vec![f32::NAN; HEADS * positions.len()])?,
    };
    call(ranks, &attention, &mut operands)?;
    ranks.synchronize(&stream)?;
    let error = check(&stream.clone_dtoh(&operands.o)?, &positions)?;
    let call_us = time(ranks, &attention, &mut operands)?;

    let slowest_us = largest(ranks, call_us)?;
    println!("rank {}: largest error {error:.4}", ranks.rank());
    if ranks.rank() == 0 && !ranks.is_simulated() {
        let plan = attention.plan();
        let tflops = plan.body().traffic.flops as f64 / slowest_us / 1e6;
        println!(
            "{}: {slowest_us:.1} µs per call, {tflops:.0} TFLOP/s per GPU",
            plan.id
        );
    }
    Ok(())
}

/// Returns the positions of this rank's rows in the sequence.
fn positions(ranks: &Communicator) -> Vec<usize> {
    let (seq, _) = size(ranks);
    let chunk_rows = seq / (2 * ranks.world() as usize);
    let chunk = |segment| Placement::Zigzag.chunk_of(ranks.world(), ranks.rank(), segment) as usize;
    [chunk(0), chunk(1)]
        .into_iter()
        .flat_map(|chunk| chunk * chunk_rows..(chunk + 1) * chunk_rows)
        .collect()
}

fn call(
    ranks: &Communicator,
    attention: &Attention,
    operands: &mut Operands,
) -> Result<(), Failure> {
    let stream = ranks.default_stream();
    let operands = AttentionOperands {
        q: &operands.q,
        k: &operands.k,
        v: &operands.v,
        o: &mut operands.o,
        lse: &mut operands.lse,
    };
    Ok(attention.launch(&stream, operands)?)
}

/// Returns the mean time in µs of back-to-back calls.
fn time(
    ranks: &Communicator,
    attention: &Attention,
    operands: &mut Operands,
) -> Result<f64, Failure> {
    let stream = ranks.default_stream();
    ranks.barrier()?;
    let (_, calls) = size(ranks);
    let started = Instant::now();
    for _ in 0..calls {
        call(ranks, attention, operands)?;
    }
    ranks.synchronize(&stream)?;
    Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}

/// Compares sampled rows of sampled heads with attention in double precision. Returns the largest error.
fn check(o: &[bf16], positions: &[usize]) -> Result<f64, Failure> {
    let mut worst: f64 = 0.0;
    for head in [0, 3, HEADS - 1] {
        let kv_head = head / (HEADS / KV_HEADS);
        let vector = |number, position, head, heads| -> Vec<f64> {
            let cols = head * DIM..(head + 1) * DIM;
            cols.map(|col| element(number, position, heads, col).to_f64())
                .collect()
        };
        for (row, position) in positions
            .iter()
            .enumerate()
            .step_by(positions.len() / 3 + 1)
        {
            let q = vector(0, *position, head, HEADS);
            let (mut sum, mut expected) = (0.0, vec![0.0; DIM]);
            for key in 0..=*position {
                let (k, v) = (
                    vector(1, key, kv_head, KV_HEADS),
                    vector(2, key, kv_head, KV_HEADS),
                );
                let score: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
                // Scores are small, so no exponential overflows.
                let weight = (score / (DIM as f64).sqrt()).exp();
                sum += weight;
                expected
                    .iter_mut()
                    .zip(&v)
                    .for_each(|(o, v)| *o += weight * v);
            }
            let found = &o[(row * HEADS + head) * DIM..][..DIM];
            for (found, expected) in found.iter().zip(expected) {
                let error = (found.to_f64() - expected / sum).abs();
                // The kernel rounds weights and results to bf16.
                if error.is_nan() || error > 0.01 {
                    let expected = expected / sum;
                    return Err(format!(
                        "row {position}, head {head}: {found}, but expected {expected}"
                    )
                    .into());
                }
                worst = worst.max(error);
            }
        }
    }
    Ok(worst)
}

/// Returns an element of Q, K or V (`number` 0, 1 or 2) at a position of the sequence. `col` counts the columns of all
/// `heads` heads of the tensor.
fn element(number: u64, position: usize, heads: usize, col: usize) -> bf16 {
    random((number << 40) + (position * heads * DIM + col) as u64)
}
