//! Checks sampled rows of a result of `ring_attention` against a reference in fp64, which uses the keys of all ranks.

use mkernel::KernelPlan;
use mkernel::Operand;
use mkernel::half::bf16;
use mkernel::spec::plan::{AttentionPlan, OpPlan};
use mkernel_testing::lab::{Failure, Lab, Matrix};
use std::sync::{Barrier, Mutex, PoisonError};

/// The largest accepted error: ‖O - reference‖ / ‖reference‖ for O, and the absolute error for LSE. Rounding O and the
/// weights to bf16 causes an error of 2.5e-3.
pub const MAX_RELATIVE_ERROR: f64 = 1e-2;
/// The number of rows of each rank that are checked, for the first and for the last head.
const ROWS: usize = 6;

/// The operands and results of a rank for two heads.
pub struct Found {
    heads: Vec<Head>,
}

/// The operands and results of a head, as [rows][D].
struct Head {
    q: Vec<bf16>,
    k: Vec<bf16>,
    v: Vec<bf16>,
    o: Vec<bf16>,
    lse: Vec<f32>,
}

impl Found {
    /// Downloads the first head of the first batch and the last head of the last batch. Operands are `[B, S, H, D]`.
    pub fn download(
        plan: &KernelPlan,
        operands: &[(Operand, Matrix)],
        lab: &Lab,
    ) -> Result<Self, Failure> {
        let op_plan = attention(plan)?;
        let shape = op_plan.shape;
        let [batches, heads, kv_heads, dim] =
            [shape.batch, shape.heads, shape.kv_heads, shape.head_dim].map(|size| size as usize);
        let of = |wanted| {
            let found = operands.iter().find(|(operand, _)| *operand == wanted);
            let (_, matrix) = found.ok_or("an operand is missing")?;
            Ok::<_, Failure>((lab.stream.clone_dtoh(&matrix.memory)?, matrix.rows as usize))
        };
        let head_of = |wanted, batch: usize, head: usize, heads: usize| {
            let (all, rows) = of(wanted)?;
            let rows = rows / batches;
            let start = |row| ((batch * rows + row) * heads + head) * dim;
            let elems = (0..rows).flat_map(|row| all[start(row)..start(row) + dim].iter().copied());
            Ok::<Vec<bf16>, Failure>(elems.collect())
        };
        let (lse, lse_rows) = of(Operand::Lse)?;
        let rows = lse_rows / (batches * heads);
        let lse_of = |at: usize| {
            let bits = |half: usize| u32::from(lse[half].to_bits());
            f32::from_bits(bits(2 * at) | bits(2 * at + 1) << 16)
        };
        let picked = [(0, 0, 0), (batches - 1, heads - 1, kv_heads - 1)];
        let heads = picked.map(|(batch, head, kv_head)| {
            let first = (batch * heads + head) * rows;
            Ok::<_, Failure>(Head {
                q: head_of(Operand::Q, batch, head, heads)?,
                k: head_of(Operand::K, batch, kv_head, kv_heads)?,
                v: head_of(Operand::V, batch, kv_head, kv_heads)?,
                o: head_of(Operand::O, batch, head, heads)?,
                lse: (first..first + rows).map(lse_of).collect(),
            })
        });
        let heads = heads.into_iter().collect::<Result<_, _>>()?;
        Ok(Self { heads })
    }
}

/// The operands and results of all ranks, which are threads of this process.
pub struct Gathered {
    by_rank: Mutex<Vec<Option<Found>>>,
    meeting: Barrier,
}

impl Gathered {
    pub fn new(world: u32) -> Self {
        Self {
            by_rank: Mutex::new((0..world).map(|_| None).collect()),
            meeting: Barrier::new(world as usize),
        }
    }

    /// Returns the error of the checked rows of `rank`. Collective: all ranks must call this function.
    pub fn check(&self, plan: &KernelPlan, rank: u32, found: Found) -> Result<f64, Failure> {
        self.with(|all| all[rank as usize] = Some(found));
        self.meeting.wait();
        let error = self.with(|all| {
            let all: Vec<&Found> = all.iter().flatten().collect();
            error_of(attention(plan)?, plan.spec.world(), rank, &all)
        });
        self.meeting.wait();
        error
    }

    fn with<R>(&self, f: impl FnOnce(&mut Vec<Option<Found>>) -> R) -> R {
        f(&mut self.by_rank.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn attention(plan: &KernelPlan) -> Result<&AttentionPlan, Failure> {
    match &plan.body().op_plan {
        OpPlan::Attention(op_plan) => Ok(op_plan),
        _ => Err("the plan is not one of attention".into()),
    }
}

/// Returns the position of a row of K among the rows of the call; `None` if the row is cached.
fn key_position(op_plan: &AttentionPlan, world: u32, rank: u32, row: usize) -> Option<usize> {
    let row = row.checked_sub(op_plan.cached_rows() as usize)?;
    Some(position(op_plan, world, rank, row))
}

/// Returns the position of row `row` of a rank in the sequence.
fn position(op_plan: &AttentionPlan, world: u32, rank: u32, row: usize) -> usize {
    let rows = op_plan.segment_rows as usize;
    let chunk = op_plan
        .config
        .placement
        .chunk_of(world, rank, (row / rows) as u32);
    chunk as usize * rows + row % rows
}

fn error_of(
    op_plan: &AttentionPlan,
    world: u32,
    rank: u32,
    all: &[&Found],
) -> Result<f64, Failure> {
    let dim = op_plan.shape.head_dim as usize;
    let own = all.get(rank as usize).ok_or("a rank has no results")?;
    let (mut errors, mut squares, mut lse_error) = (0.0, 0.0, 0.0);
    for (index, head) in own.heads.iter().enumerate() {
        let rows = head.lse.len();
        for row in (0..ROWS).map(|i| (i * rows / ROWS + i).min(rows - 1)) {
            let place = position(op_plan, world, rank, row);
            let q = &head.q[row * dim..][..dim];
            let (mut sum, mut o) = (0.0, vec![0.0; dim]);
            for (source, theirs) in (0..).zip(all) {
                let theirs = &theirs.heads[index];
                for (key, (k, v)) in theirs.k.chunks(dim).zip(theirs.v.chunks(dim)).enumerate() {
                    let is_later = key_position(op_plan, world, source, key) > Some(place);
                    if op_plan.config.causal && is_later {
                        continue;
                    }
                    // Scores are small, so no exponential overflows fp64.
                    let weight = (dot(q, k) / (dim as f64).sqrt()).exp();
                    sum += weight;
                    for (o, v) in o.iter_mut().zip(v) {
                        *o += weight * v.to_f64();
                    }
                }
            }
            for (o, found) in o.iter().zip(&head.o[row * dim..][..dim]) {
                errors += (o / sum - found.to_f64()).powi(2);
                squares += (o / sum).powi(2);
            }
            lse_error = f64::max(lse_error, (sum.ln() - f64::from(head.lse[row])).abs());
            if head.lse[row].is_nan() {
                lse_error = f64::INFINITY;
            }
        }
    }
    Ok(f64::max((errors / squares).sqrt(), lse_error))
}

fn dot(a: &[bf16], b: &[bf16]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum()
}
