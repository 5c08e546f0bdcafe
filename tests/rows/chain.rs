//! A test of one captured graph of `all_gather`, `gemm_ar` and `gemm`. Each replay reads another number of rows.

use mkernel::cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::{Communicator, Simulation, fused_kernel};
use std::sync::Arc;

const MOST: usize = 40;
const HEADS: usize = 32;
const FEATURES: usize = 64;
const HIDDEN: usize = 24;
/// The rows of the replays, which grow and shrink: none, fewer than ranks, and the most are among them.
const BATCHES: [usize; 7] = [5, 33, 0, 1, 40, 3, 17];
const POISON: f32 = 77.0;

/// From sequence to tensor parallelism: gathers the residual, of which each rank has its rows.
#[fused_kernel(op = all_gather, m = dynamic, n = 64)]
struct Gather;

/// The output projection, the residual and the norm, with all rows on every rank.
#[fused_kernel(op = gemm_ar, m = dynamic, n = 64, k = 32, b_layout = nk, residual = true, norm = rms, eps = 1e-5)]
struct Attention;

/// This rank's columns of the feed-forward block for all rows.
#[fused_kernel(op = gemm, m = dynamic, n = 24, k = 64, b_layout = nk, swiglu = true)]
struct GateUp;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Matrices in the memory of a GPU.
struct Buffers {
    rows: CudaSlice<i32>,
    shard: CudaSlice<bf16>,
    heads: CudaSlice<bf16>,
    weights: [CudaSlice<bf16>; 3],
    residual: CudaSlice<bf16>,
    sum: CudaSlice<bf16>,
    normalised: CudaSlice<bf16>,
    hidden: CudaSlice<bf16>,
}

impl Buffers {
    fn new(stream: &Arc<CudaStream>, rank: usize) -> Result<Self, AnyError> {
        let buffer = |values: &[f64]| stream.clone_htod(&rounded(values));
        let poisoned = |cols| stream.clone_htod(&poison(cols));
        Ok(Self {
            rows: stream.alloc_zeros(1)?,
            shard: poisoned(FEATURES)?,
            heads: buffer(&heads(rank))?,
            weights: [
                buffer(&projection(rank))?,
                buffer(&norm_weight())?,
                buffer(&gate_and_up(rank))?,
            ],
            residual: poisoned(FEATURES)?,
            sum: poisoned(FEATURES)?,
            normalised: poisoned(FEATURES)?,
            hidden: poisoned(HIDDEN)?,
        })
    }

    /// Uploads the number of rows and the rank's rows of the residual, and poisons all results.
    fn begin(
        &mut self,
        stream: &Arc<CudaStream>,
        ranks: &Communicator,
        rows: usize,
    ) -> Result<(), AnyError> {
        let own = rows.div_ceil(ranks.world() as usize);
        let residual = rounded(&residual(rows));
        let first = (ranks.rank() as usize * own).min(rows);
        let shard = &residual[first * FEATURES..(first + own).min(rows) * FEATURES];
        stream.memcpy_htod(shard, &mut self.shard)?;
        stream.memcpy_htod(&[rows as i32], &mut self.rows)?;
        stream.memcpy_htod(&poison(FEATURES), &mut self.sum)?;
        stream.memcpy_htod(&poison(FEATURES), &mut self.normalised)?;
        Ok(stream.memcpy_htod(&poison(HIDDEN), &mut self.hidden)?)
    }
}

/// Captures a call of each operator, which read the number of rows when they start.
///
/// # Safety
/// The caller keeps the buffers until the last replay has ended, and orders other work on them.
unsafe fn capture(
    ranks: &Communicator,
    stream: &Arc<CudaStream>,
    b: &mut Buffers,
) -> Result<CudaGraph, AnyError> {
    let most = MOST as u64;
    let gather = Gather::prepare(ranks, most)?;
    let attention = Attention::prepare(ranks, most)?;
    let gate_up = GateUp::prepare(ranks, most)?;
    // SAFETY: guaranteed by the caller.
    let graph = unsafe {
        ranks.capture(stream, || {
            let operands = GatherOperands {
                x: &b.shard,
                y: &mut b.residual,
            };
            gather.call(stream, operands).rows_in(&b.rows).capture()?;
            let operands = AttentionOperands {
                a: &b.heads,
                b: &b.weights[0],
                c: &mut b.normalised,
                residual: &b.residual,
                weight: &b.weights[1],
                residual_out: &mut b.sum,
            };
            attention
                .call(stream, operands)
                .rows_in(&b.rows)
                .capture()?;
            let operands = GateUpOperands {
                a: &b.normalised,
                b: &b.weights[2],
                c: &mut b.hidden,
            };
            gate_up.call(stream, operands).rows_in(&b.rows).capture()
        })
    };
    Ok(graph?)
}

#[test]
fn one_graph_serves_every_batch() {
    for (seed, world) in (0..).zip([1, 2, 4]) {
        let simulation = Simulation {
            ranks: world,
            seed,
            sms: 4,
            ..Simulation::default()
        };
        let communicators = Communicator::simulated(&simulation).expect("simulated GPUs");
        let results = mkernel::run(communicators, |ranks| on_rank(&ranks)).expect("no rank fails");
        assert!(results.iter().all(|bits| *bits == results[0]), "{world}");
    }
}

/// Replays the graph for each batch, and checks the results. Returns bits that must be equal on all ranks.
fn on_rank(ranks: &Communicator) -> Result<Vec<bf16>, AnyError> {
    let stream = ranks.context().new_stream()?;
    let (rank, world) = (ranks.rank() as usize, ranks.world() as usize);
    let mut buffers = Buffers::new(&stream, rank)?;
    stream.synchronize()?;
    // SAFETY: the buffers are dropped after the last replay, and all work on them is in this stream.
    let graph = unsafe { capture(ranks, &stream, &mut buffers) }?;
    let mut bits = Vec::new();
    for rows in BATCHES {
        buffers.begin(&stream, ranks, rows)?;
        graph.launch()?;
        ranks.synchronize(&stream)?;
        let sum = stream.clone_dtoh(&buffers.sum)?;
        let normalised = stream.clone_dtoh(&buffers.normalised)?;
        let hidden = stream.clone_dtoh(&buffers.hidden)?;
        check("sum", rows, &sum, &wanted_sum(rows, world));
        check("norm", rows, &normalised, &wanted_norm(&sum));
        check("hidden", rows, &hidden, &wanted_hidden(&normalised, rank));
        bits.extend([sum, normalised].concat());
    }
    assert_eq!(ranks.findings(), []);
    Ok(bits)
}

/// Asserts that the first rows of `found` are `wanted`, and that no other row has been written.
fn check(name: &str, rows: usize, found: &[bf16], wanted: &[f64]) {
    let cols = found.len() / MOST;
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let found = found.to_f64();
        let (wanted, error) = if i < rows * cols {
            // A sum adds partial sums of four ranks, each rounded to bf16.
            (*wanted, wanted.abs() / 64.0 + 1.0 / 16.0)
        } else {
            (f64::from(POISON), 0.0)
        };
        let is_right = (found - wanted).abs() <= error;
        assert!(
            is_right,
            "{name}, {rows} rows, element {i}: {found}, not {wanted}"
        );
    }
}

fn wanted_sum(rows: usize, world: usize) -> Vec<f64> {
    let mut sum = residual(rows);
    for rank in 0..world {
        let product = product(&heads(rank), &projection(rank), HEADS);
        sum.iter_mut()
            .zip(product)
            .for_each(|(sum, part)| *sum += part);
    }
    sum.resize(MOST * FEATURES, 0.0);
    sum
}

fn wanted_norm(sum: &[bf16]) -> Vec<f64> {
    let row = |row: &[bf16]| {
        let squares: f64 = row.iter().map(|z| z.to_f64() * z.to_f64()).sum();
        let scale = (squares / FEATURES as f64 + 1e-5).sqrt().recip();
        let weight = norm_weight().into_iter();
        let terms = row.iter().zip(weight);
        terms
            .map(|(z, weight)| z.to_f64() * scale * weight)
            .collect::<Vec<_>>()
    };
    sum.chunks(FEATURES).flat_map(row).collect()
}

fn wanted_hidden(normalised: &[bf16], rank: usize) -> Vec<f64> {
    let normalised: Vec<_> = normalised.iter().map(|c| c.to_f64()).collect();
    let both = product(&normalised, &gate_and_up(rank), FEATURES);
    let row = |row: &[f64]| {
        let (gate, up) = row.split_at(HIDDEN);
        let silu = |gate: f64| gate / (1.0 + (-gate).exp());
        let terms = gate.iter().zip(up);
        terms.map(|(gate, up)| silu(*gate) * up).collect::<Vec<_>>()
    };
    both.chunks(2 * HIDDEN).flat_map(row).collect()
}

/// Returns `a` times the transpose of `b`, whose rows have `k` elements.
fn product(a: &[f64], b: &[f64], k: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    let row = |a| b.chunks(k).map(move |b| dot(a, b));
    a.chunks(k).flat_map(row).collect()
}

fn poison(cols: usize) -> Vec<bf16> {
    vec![bf16::from_f32(POISON); MOST * cols]
}

fn rounded(values: &[f64]) -> Vec<bf16> {
    values.iter().map(|value| bf16::from_f64(*value)).collect()
}

/// Returns numbers between -1 and 1 that look random and that bf16 has exactly.
fn numbers(seed: usize, count: usize) -> Vec<f64> {
    let number = |i: usize| {
        let mixed = ((seed << 20) + i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 57) as f64 / 64.0 - 1.0
    };
    (0..count).map(number).collect()
}

// The matrices, which every rank can compute for all ranks.

fn heads(rank: usize) -> Vec<f64> {
    numbers(rank, MOST * HEADS)
}

fn projection(rank: usize) -> Vec<f64> {
    numbers(10 + rank, FEATURES * HEADS)
}

fn gate_and_up(rank: usize) -> Vec<f64> {
    numbers(20 + rank, 2 * HIDDEN * FEATURES)
}

fn norm_weight() -> Vec<f64> {
    numbers(30, FEATURES)
}

fn residual(rows: usize) -> Vec<f64> {
    numbers(31 + rows, rows * FEATURES)
}
