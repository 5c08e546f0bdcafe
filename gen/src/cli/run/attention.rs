//! Inputs and reference of `ring_attention`. The reference is computed in fp64.

use super::inputs::Inputs;
use super::reference::{Matrix, matrix_sums_bytes};
use mkernel::Operand;
use mkernel::half::bf16;
use mkernel::spec::plan::AttentionPlan;
use mkernel::{
    KernelPlan,
    spec::{Dtype, Layout},
};
use std::thread;

/// Random queries, keys and values.
pub fn inputs(plan: &KernelPlan, _: &AttentionPlan, seed: u64, call: u32) -> Inputs {
    Inputs::random(plan, seed, call, |_| false)
}

/// The expected O and LSE of `rank`.
pub fn expected(
    plan: &KernelPlan,
    op_plan: &AttentionPlan,
    inputs: &Inputs,
    rank: u32,
    threads: usize,
) -> Option<Vec<Matrix>> {
    let world = plan.spec.world();
    let map = RowMap::new(op_plan, world);
    let shape = op_plan.shape;
    let (heads, dim) = (shape.heads as usize, shape.head_dim as usize);
    let positions = map.positions(rank);
    let rows = shape.batch as usize * heads * positions.len();
    // Rows are in the order of LSE, [B, H, S].
    let mut found = vec![Row::default(); rows];
    let per_thread = rows.div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        for (part, found) in found.chunks_mut(per_thread).enumerate() {
            let (map, positions) = (&map, &positions);
            scope.spawn(move || {
                for (row, found) in (part * per_thread..).zip(found) {
                    let (head, index) = (row / positions.len(), row % positions.len());
                    let of = (head / heads, head % heads);
                    *found = map.attend(inputs, rank, of, (index, positions[index]));
                }
            });
        }
    });
    let mut o = vec![0.0; rows * dim];
    let mut magnitudes = vec![0.0; rows * dim];
    for (row, of_row) in found.iter().enumerate() {
        let (head, index) = (row / positions.len(), row % positions.len());
        let at = map.at(Operand::Q, rank, (head / heads, head % heads), index);
        o[at..at + dim].copy_from_slice(&of_row.o);
        magnitudes[at..at + dim].copy_from_slice(&of_row.magnitudes);
    }
    let terms = (shape.seq + shape.head_dim) as usize;
    let matrix = |values, rounded, cols, dtype| Matrix {
        values,
        cols,
        terms,
        rounded,
        dtype,
    };
    let lse = found.iter().map(|row| row.lse).collect();
    Some(vec![
        matrix(o, magnitudes, dim, Dtype::Bf16),
        matrix(lse, Vec::new(), 1, Dtype::Fp32),
    ])
}

/// Bytes that the references of all ranks need at the same time for results in fp32 and for magnitudes that were
/// rounded.
pub fn reference_bytes(plan: &KernelPlan, _: &AttentionPlan) -> u64 {
    matrix_sums_bytes(plan)
}

/// A row of O with its LSE.
#[derive(Clone, Debug, Default)]
struct Row {
    o: Vec<f32>,
    /// Sums of |weight · V|, since the kernel rounds weights to bf16 before it multiplies them by V.
    magnitudes: Vec<f32>,
    lse: f32,
}

/// Maps rows of the sequence to ranks and to elements of their operands.
struct RowMap<'a> {
    op_plan: &'a AttentionPlan,
    world: u32,
}

impl<'a> RowMap<'a> {
    fn new(op_plan: &'a AttentionPlan, world: u32) -> Self {
        Self { op_plan, world }
    }

    /// The positions in the sequence of the rows of `rank`.
    fn positions(&self, rank: u32) -> Vec<usize> {
        let placement = self.op_plan.config.placement;
        let (total, rows) = (self.op_plan.shape.seq, u64::from(self.op_plan.segment_rows));
        (0..placement.segments())
            .flat_map(|segment| {
                let first = u64::from(placement.chunk_of(self.world, rank, segment)) * rows;
                first..total.min(first + rows)
            })
            .map(|row| row as usize)
            .collect()
    }

    /// The index of the first element of a row of an operand.
    fn at(&self, operand: Operand, rank: u32, (batch, head): (usize, usize), row: usize) -> usize {
        let shape = self.op_plan.shape;
        let heads = match operand {
            Operand::K | Operand::V => shape.kv_heads,
            _ => shape.heads,
        } as usize;
        let rows = self.positions(rank).len();
        let index = match self.op_plan.config.layout {
            Layout::Bshd => (batch * rows + row) * heads + head,
            Layout::Bhsd => (batch * heads + head) * rows + row,
        };
        index * shape.head_dim as usize
    }

    /// The results of row `index` of `rank`, which is at `position` of the sequence.
    fn attend(
        &self,
        inputs: &Inputs,
        rank: u32,
        (batch, head): (usize, usize),
        (index, position): (usize, usize),
    ) -> Row {
        let shape = self.op_plan.shape;
        let dim = shape.head_dim as usize;
        let scale = self.op_plan.config.scale.of(shape.head_dim);
        let kv_head = head / (shape.heads / shape.kv_heads) as usize;
        let slice = |operand, rank: u32, head, row| {
            let at = self.at(operand, rank, (batch, head), row);
            &inputs.of(operand)[rank as usize][at..at + dim]
        };
        let q = slice(Operand::Q, rank, head, index);
        let mut keys = Vec::new();
        for source in 0..self.world {
            for (row, other) in self.positions(source).into_iter().enumerate() {
                if !self.op_plan.config.causal || other <= position {
                    let k = slice(Operand::K, source, kv_head, row);
                    keys.push((source, row, dot(q, k) * scale));
                }
            }
        }
        let max_score = keys.iter().map(|key| key.2).fold(f64::MIN, f64::max);
        let sum: f64 = keys.iter().map(|key| (key.2 - max_score).exp()).sum();
        let (mut o, mut magnitudes) = (vec![0.0; dim], vec![0.0; dim]);
        for (source, row, score) in keys {
            let weight = (score - max_score).exp() / sum;
            let v = slice(Operand::V, source, kv_head, row);
            for ((o, magnitude), v) in o.iter_mut().zip(&mut magnitudes).zip(v) {
                *o += weight * v.to_f64();
                *magnitude += weight * v.to_f64().abs();
            }
        }
        let floats = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
        Row {
            o: floats(o),
            magnitudes: floats(magnitudes),
            lse: (max_score + sum.ln()) as f32,
        }
    }
}

fn dot(a: &[bf16], b: &[bf16]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum()
}
