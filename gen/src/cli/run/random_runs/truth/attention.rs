//! Attention of every row to the rows that it sees.

use super::sums::size;
use super::{Element, Job, rounding};
use mkernel::Operand;
use mkernel::spec::{AttentionConfig, Layout, Placement};

/// A row of a rank: the sequence and the position there.
#[derive(Clone, Copy)]
struct Row {
    sequence: usize,
    position: usize,
}

impl Row {
    fn sees(&self, other: &Self, causal: bool) -> bool {
        self.sequence == other.sequence && !(causal && other.position > self.position)
    }
}

/// O, and LSE if the kernel writes it.
pub fn results(job: &Job, config: &AttentionConfig, rank: usize) -> Vec<Vec<Element>> {
    let (heads, kv_heads) = (size(config.heads), size(config.kv_heads));
    let dim = size(config.head_dim);
    let batches = if config.packed { 1 } else { size(config.batch) };
    let scale = config
        .scale
        .fixed()
        .map_or(1.0 / (dim as f64).sqrt(), f64::from);
    let lengths = lengths(job, config);
    let (q, k, v) = (
        job.floats(Operand::Q, rank),
        job.floats_of_ranks(Operand::K),
        job.floats_of_ranks(Operand::V),
    );
    let rows: Vec<Vec<Row>> = (0..job.world)
        .map(|rank| rows_of(job, config, rank, &lengths))
        .collect();
    // The rows that a head of an operand has, with those behind the last one of packed sequences.
    let room = q.len() / (batches * heads * dim);
    let at = |elems: usize, heads: usize, (batch, head): (usize, usize), row: usize| {
        let rows = elems / (batches * heads * dim);
        dim * match config.layout {
            Layout::Bshd => (batch * rows + row) * heads + head,
            Layout::Bhsd => (batch * heads + head) * rows + row,
        }
    };
    let mut o = vec![None; q.len()];
    let mut lse = vec![None; batches * heads * room];
    for batch in 0..batches {
        for head in 0..heads {
            let kv_head = head * kv_heads / heads;
            for (index, row) in rows[rank].iter().enumerate() {
                let of_q = at(q.len(), heads, (batch, head), index);
                let q = &q[of_q..of_q + dim];
                // The score of each row that this one sees, and its V.
                let mut seen = Vec::new();
                for source in 0..job.world {
                    let cached = cached_rows(job, source, batch, batches);
                    let of_call = (cached..).zip(&rows[source]);
                    let of_call = of_call.filter(|(_, other)| row.sees(other, config.causal));
                    for index in (0..cached).chain(of_call.map(|(index, _)| index)) {
                        let of_kv = at(k[source].len(), kv_heads, (batch, kv_head), index);
                        let key = &k[source][of_kv..of_kv + dim];
                        let score: f64 = q.iter().zip(key).map(|(q, k)| q * k).sum();
                        seen.push((score * scale, &v[source][of_kv..of_kv + dim]));
                    }
                }
                let sum: f64 = seen.iter().map(|(score, _)| score.exp()).sum();
                lse[(batch * heads + head) * room + index] = Some((sum.ln(), 3e-4));
                for i in 0..dim {
                    let weighted = |(score, v): &(f64, &[f64])| score.exp() / sum * v[i];
                    let value: f64 = seen.iter().map(weighted).sum();
                    let magnitude: f64 = seen.iter().map(|seen| weighted(seen).abs()).sum();
                    // Weights are rounded before they are multiplied.
                    let error = rounding(value, config.dtype) + rounding(magnitude, config.dtype);
                    o[of_q + i] = Some((value, error + 3e-4));
                }
            }
        }
    }
    match config.lse {
        true => vec![o, lse],
        false => vec![o],
    }
}

/// The number of cached rows of a batch on a rank.
fn cached_rows(job: &Job, rank: usize, batch: usize, batches: usize) -> usize {
    let counts = job.inputs.numbers(Operand::CachedRows).first();
    counts.map_or(0, |counts| counts[rank * batches + batch] as usize)
}

/// The rows of each sequence of a batch.
fn lengths(job: &Job, config: &AttentionConfig) -> Vec<usize> {
    match job.inputs.numbers(Operand::CuSeqlens).first() {
        Some(offsets) => offsets
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as usize)
            .collect(),
        None => {
            let rows = job.inputs.rows.map(|rows| rows as usize);
            vec![rows.unwrap_or_else(|| size(config.seq))]
        }
    }
}

/// The rows of a rank, in their order.
fn rows_of(job: &Job, config: &AttentionConfig, rank: usize, lengths: &[usize]) -> Vec<Row> {
    let (chunks, own) = match config.placement {
        Placement::Contiguous => (job.world, vec![rank]),
        Placement::Zigzag => (2 * job.world, vec![rank, 2 * job.world - 1 - rank]),
    };
    let mut rows = Vec::new();
    for (sequence, length) in lengths.iter().enumerate() {
        let each = length.div_ceil(chunks);
        for chunk in &own {
            let positions = (chunk * each).min(*length)..((chunk + 1) * each).min(*length);
            rows.extend(positions.map(|position| Row { sequence, position }));
        }
    }
    rows
}
