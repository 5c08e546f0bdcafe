//! Inputs and reference of `ring_attention`. The reference is computed in fp64.

use super::inputs::{Inputs, Random};
use super::other_batch::{Lines, OtherBatch, last_half};
use super::reference::{Matrix, rounding_error};
use mkernel::Operand;
use mkernel::spec::plan::{AttentionPlan, OpPlan};
use mkernel::{
    KernelConfig, KernelPlan,
    spec::{AttentionTuning, Dim, Dtype, Layout, Problem, Shape},
};
use std::ops::Range;
use std::thread;

/// Random queries, keys and values, and the offsets of packed sequences of random lengths, or random numbers of cached rows.
pub fn inputs(plan: &KernelPlan, op_plan: &AttentionPlan, seed: u64, call: u32) -> Inputs {
    let mut inputs = Inputs::random(plan, seed, call, |_| false);
    if op_plan.config.packed {
        let offsets = offsets(op_plan, seed ^ u64::from(call));
        let of_ranks = vec![offsets; plan.spec.world() as usize];
        inputs.numbers = vec![(Operand::CuSeqlens, of_ranks)];
    }
    if let Some(most) = op_plan.config.cached {
        let world = plan.spec.world();
        let mut random = Random(seed ^ u64::from(call));
        let counts = u64::from(world) * op_plan.batches();
        let counts: Vec<i32> = (0..counts)
            .map(|_| random.below(most as usize + 1) as i32)
            .collect();
        inputs.numbers = vec![(Operand::CachedRows, vec![counts; world as usize])];
    }
    inputs
}

/// The offsets of sequences that have all rows together, or fewer.
fn offsets(op_plan: &AttentionPlan, seed: u64) -> Vec<i32> {
    let (sequences, most) = (op_plan.shape.batch, op_plan.shape.seq);
    let mut random = Random(seed);
    let (mut offsets, mut end) = (vec![0], 0);
    for _ in 0..sequences {
        let rows = random.below((2 * most / sequences) as usize + 1) as u64;
        end = most.min(end + rows);
        offsets.push(end as i32);
    }
    offsets
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
    let map = RowMap::new(op_plan, world, inputs);
    let (shape, dtype) = (op_plan.shape, op_plan.config.dtype);
    let (heads, dim) = (shape.heads as usize, shape.head_dim as usize);
    let positions = map.positions(rank);
    let all_heads = op_plan.heads() as usize;
    let rows = all_heads * positions.len();
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
    // Packed sequences may leave room behind them, which is not written.
    let room = map.room(Operand::O, rank);
    let mut o = vec![f32::NAN; all_heads * room * dim];
    let mut errors = vec![0.0; all_heads * room * dim];
    let mut lse = vec![f32::NAN; all_heads * room];
    for (row, of_row) in found.iter().enumerate() {
        let (head, index) = (row / positions.len(), row % positions.len());
        lse[head * room + index] = of_row.lse;
        let at = map.at(Operand::Q, rank, (head / heads, head % heads), index);
        o[at..at + dim].copy_from_slice(&of_row.o);
        let of_weights = of_row.magnitudes.iter();
        let of_weights = of_weights.map(|magnitude| rounding_error(*magnitude, dtype));
        errors[at..at + dim]
            .iter_mut()
            .zip(of_weights)
            .for_each(|(to, error)| *to = error);
    }
    let keys = shape.seq + u64::from(world) * op_plan.cached_rows();
    let terms = (keys + shape.head_dim) as usize;
    let matrix = |values, errors, cols, dtype| Matrix {
        values,
        cols,
        terms,
        errors,
        dtype,
    };
    let o = matrix(o, errors, dim, dtype);
    let lse = (op_plan.config.lse).then(|| matrix(lse, Vec::new(), 1, Dtype::Fp32));
    Some(std::iter::once(o).chain(lse).collect())
}

/// The last half of the sequences, in reverse order, as a call of a kernel with room for more rows: of packed sequences if such a kernel
/// exists, otherwise of sequences whose length each call gives. Attention always promises equal bits.
pub fn other_batch(
    config: &KernelConfig,
    plan: &KernelPlan,
    op_plan: &AttentionPlan,
    first: &Inputs,
) -> Option<OtherBatch> {
    let before = RowMap::new(op_plan, plan.spec.world(), first);
    let sequences = last_half(op_plan.shape.batch as usize);
    let call = |is_packed| other_call(config, plan, &before, (&sequences, is_packed));
    let alone = || (!op_plan.config.packed).then(|| call(false)).flatten();
    let other = call(true).or_else(alone)?;
    Some(other.of(first, |other, spec| {
        let OpPlan::Attention(op_plan) = &other.plan.body().op_plan else {
            return None;
        };
        let after = RowMap::new(op_plan, before.world, &other.inputs);
        let mut places = Vec::new();
        for rank in 0..before.world {
            for (to, from) in sequences.iter().enumerate() {
                let place = |line| (rank as usize, line);
                let to = after.lines(spec.operand, rank, to).into_iter().map(place);
                let from = before
                    .lines(spec.operand, rank, *from)
                    .into_iter()
                    .map(place);
                places.extend(to.zip(from).map(<[_; 2]>::from));
            }
        }
        let cols = match spec.operand {
            Operand::Lse => 1,
            _ => op_plan.shape.head_dim as usize,
        };
        Some(Lines { cols, places })
    }))
}

/// A call with these sequences of the first call.
fn other_call(
    config: &KernelConfig,
    plan: &KernelPlan,
    before: &RowMap,
    (sequences, is_packed): (&[usize], bool),
) -> Option<OtherBatch> {
    let (mut config, mut shape) = (config.clone(), plan.shape());
    let (Problem::Attention(of), Shape::Attention(to)) = (&mut config.problem, &mut shape) else {
        return None;
    };
    let mut offsets = vec![0];
    for sequence in sequences {
        offsets.push(offsets[offsets.len() - 1] + before.length(*sequence));
    }
    let rows = match is_packed {
        true => offsets[sequences.len()],
        false => before.length(0),
    };
    let of_ranks = before.cached.chunks(to.batch as usize);
    let cached = of_ranks.flat_map(|counts| sequences.iter().map(|sequence| counts[*sequence]));
    let numbers = match is_packed {
        true => (
            Operand::CuSeqlens,
            offsets.iter().map(|offset| *offset as i32).collect(),
        ),
        false => (Operand::CachedRows, cached.collect()),
    };
    (to.batch, to.seq) = (sequences.len() as u64, rows + rows / 2 + 1);
    (of.batch, of.seq) = (Dim::Static(to.batch), Dim::UpTo(to.seq));
    // The planner chooses slots anew: packed sequences need one for each head.
    (of.packed, of.tuning) = (is_packed, AttentionTuning::default());
    let numbers = (numbers.0, vec![numbers.1; before.world as usize]);
    let rows = (!is_packed).then_some(rows);
    OtherBatch::planned(config, shape, rows, vec![numbers])
}

/// A row of O with its LSE.
#[derive(Clone, Debug, Default)]
struct Row {
    o: Vec<f32>,
    /// Sums of |weight · V|, since the kernel rounds weights before it multiplies them by V.
    magnitudes: Vec<f32>,
    lse: f32,
}

/// Maps rows of the sequence to ranks and to elements of their operands.
struct RowMap<'a> {
    op_plan: &'a AttentionPlan,
    world: u32,
    /// The offsets of packed sequences, or of the only sequence of each batch.
    offsets: Vec<u64>,
    /// The cached rows of each rank and batch, if there are any.
    cached: &'a [i32],
}

impl<'a> RowMap<'a> {
    fn new(op_plan: &'a AttentionPlan, world: u32, inputs: &'a Inputs) -> Self {
        let packed = inputs.numbers(Operand::CuSeqlens).first();
        let offsets = match packed {
            Some(offsets) => offsets.iter().map(|offset| *offset as u64).collect(),
            None => vec![0, inputs.rows.unwrap_or(op_plan.shape.seq)],
        };
        Self {
            op_plan,
            world,
            offsets,
            cached: inputs
                .numbers(Operand::CachedRows)
                .first()
                .map_or(&[], Vec::as_slice),
        }
    }

    /// The positions of the rows of `rank` in the sequence, or among the rows of all packed sequences.
    fn positions(&self, rank: u32) -> Vec<usize> {
        let placement = self.op_plan.config.placement;
        let rows = placement.packed_rows_of(self.world, rank, &self.offsets);
        rows.into_iter().flatten().map(|row| row as usize).collect()
    }

    /// The number of cached rows of a batch on `rank`, which come before its other rows.
    fn cached(&self, rank: u32, batch: usize) -> usize {
        let index = rank as usize * self.op_plan.batches() as usize + batch;
        self.cached.get(index).map_or(0, |rows| *rows as usize)
    }

    /// The rows for which a head of an operand on `rank` has room.
    fn room(&self, operand: Operand, rank: u32) -> usize {
        let (config, shape) = (self.op_plan.config, self.op_plan.shape);
        if let (Some(cached), Operand::K | Operand::V) = (config.cached, operand) {
            return cached as usize + shape.rank_rows(self.world, config.placement) as usize;
        }
        match config.packed {
            true => shape.packed_rank_rows(self.world, config.placement) as usize,
            false => self.positions(rank).len(),
        }
    }

    /// The positions of the sequence that has this position.
    fn sequence_of(&self, position: usize) -> Range<usize> {
        let behind = self
            .offsets
            .partition_point(|offset| *offset <= position as u64);
        self.offsets[behind - 1] as usize..self.offsets[behind] as usize
    }

    /// The number of rows of a sequence, over all ranks, without cached rows.
    fn length(&self, sequence: usize) -> u64 {
        let sequence = if self.op_plan.config.packed {
            sequence
        } else {
            0
        };
        self.offsets[sequence + 1] - self.offsets[sequence]
    }

    /// The lines of a sequence in an operand on `rank`, head by head: rows of a head. Cached rows come first.
    fn lines(&self, operand: Operand, rank: u32, sequence: usize) -> Vec<usize> {
        let (config, shape) = (self.op_plan.config, self.op_plan.shape);
        let positions = self.positions(rank);
        let (batch, rows) = match config.packed {
            true => {
                let before = |end| positions.partition_point(|position| (*position as u64) < end);
                (
                    0,
                    before(self.offsets[sequence])..before(self.offsets[sequence + 1]),
                )
            }
            false => (sequence, 0..positions.len()),
        };
        let (heads, cached) = match operand {
            Operand::K | Operand::V => (shape.kv_heads, self.cached(rank, batch)),
            _ => (shape.heads, 0),
        };
        let rows = rows.start..rows.end + cached;
        let line = |head, row| match operand {
            Operand::Lse => (batch * heads as usize + head) * self.room(operand, rank) + row,
            _ => self.at(operand, rank, (batch, head), row) / shape.head_dim as usize,
        };
        (0..heads as usize)
            .flat_map(|head| rows.clone().map(move |row| (head, row)))
            .map(|(head, row)| line(head, row))
            .collect()
    }

    /// The index of the first element of a row of an operand.
    fn at(&self, operand: Operand, rank: u32, (batch, head): (usize, usize), row: usize) -> usize {
        let shape = self.op_plan.shape;
        let heads = match operand {
            Operand::K | Operand::V => shape.kv_heads,
            _ => shape.heads,
        } as usize;
        let rows = self.room(operand, rank);
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
        let sequence = self.sequence_of(position);
        let mut keys = Vec::new();
        for source in 0..self.world {
            let cached = self.cached(source, batch);
            let is_seen = |other: usize| {
                let is_later = self.op_plan.config.causal && other > position;
                sequence.contains(&other) && !is_later
            };
            let of_call = (cached..).zip(self.positions(source));
            let of_call = of_call.filter(|(_, other)| is_seen(*other));
            for row in (0..cached).chain(of_call.map(|(row, _)| row)) {
                let k = slice(Operand::K, source, kv_head, row);
                keys.push((source, row, dot(q, k) * scale));
            }
        }
        let max_score = keys.iter().map(|key| key.2).fold(f64::MIN, f64::max);
        let sum: f64 = keys.iter().map(|key| (key.2 - max_score).exp()).sum();
        let (mut o, mut magnitudes) = (vec![0.0; dim], vec![0.0; dim]);
        for (source, row, score) in keys {
            let weight = (score - max_score).exp() / sum;
            let v = slice(Operand::V, source, kv_head, row);
            for ((o, magnitude), v) in o.iter_mut().zip(&mut magnitudes).zip(v) {
                *o += weight * f64::from(*v);
                *magnitude += weight * f64::from(v.abs());
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

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b);
    products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}
