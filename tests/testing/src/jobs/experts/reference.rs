//! The operands of a layer of experts, and the expected results, which are computed by plain loops over all tokens.

use super::buffers::{OperandValues, Outputs};
use super::layer::{Layer, NO_CHOICE, Routing};
use super::scales::{down_scale, quantised};
use crate::jobs::simulated::rounded;
use mkernel::half::bf16;
use mkernel::spec::Scales;
use mkernel::spec::plan::SCALE_BLOCK;

/// The row index of tokens that a rank does not have. The row exists, so a kernel that reads this index computes a
/// wrong result.
const ROW_INDEX_OF_NO_TOKEN: i32 = 0;

/// The row indices, and the experts that a kernel chooses, of tokens that a rank has, before the kernel writes them. The experts of
/// tokens that a rank does not have.
const NOT_WRITTEN: i32 = -7;

/// Returns an element of a token. Elements are small whole numbers, most of them 0, so that sums are exact in elements of two
/// bytes. In a longer token, a smaller share of elements is not 0.
fn token_value(call: usize, rank: usize, token: usize, col: usize, hidden: usize) -> f32 {
    let period = 97.max(hidden / 5);
    let x = (call * 7919 + rank * 104_729 + token * 1299 + col * 31) % period;
    [1.0, -1.0, 2.0].get(x / 2).copied().unwrap_or(0.0)
}

const WEIGHTS: [f32; 3] = [-1.0, 0.0, 1.0];

/// Returns the index in `WEIGHTS` of an element of an expert's weight.
fn weight_kind(expert: usize, row: usize, col: usize) -> usize {
    (expert * 31 + row * 17 + col * 7) % 3
}

fn weight_value(expert: usize, row: usize, col: usize) -> f32 {
    WEIGHTS[weight_kind(expert, row, col)]
}

/// The factor of the weights of the gate, and the divisor of the weights of up. A product with the gate is then 0, or
/// so far from 0 that its `silu` is exactly the product or 0.
const GATE_SCALE: f32 = 256.0;

/// Returns whether a result or a sum of some of its terms is exact, which holds for numbers of few bits.
fn is_exact(x: &f32) -> bool {
    x.abs() <= 256.0 && bf16::from_f32(*x).to_f32() == *x
}

impl Layer {
    /// Returns the most rows of a rank.
    fn max_rows(&self) -> usize {
        let most =
            mkernel::spec::config::all_rows(self.world, self.experts, self.top_k, self.max_tokens);
        self.max_rows.map_or(most, |rows| most.min(rows.into())) as usize
    }

    /// Returns the weights of a rank's experts.
    pub(super) fn weights(&self, rank: usize) -> Vec<f32> {
        let (hidden, cols) = (self.hidden as usize, self.weight_cols());
        let first = rank * self.local_experts();
        let of = |expert: usize, i: usize| {
            let (row, col) = match self.nk {
                true => (i % hidden, i / hidden),
                false => (i / cols, i % cols),
            };
            let scale = match (self.swiglu, col < cols / 2) {
                (false, _) => 1.0,
                (true, true) => GATE_SCALE,
                (true, false) => 1.0 / GATE_SCALE,
            };
            weight_value(expert, row, col) * scale
        };
        (first..first + self.local_experts())
            .flat_map(|expert| (0..hidden * cols).map(move |i| of(expert, i)))
            .collect()
    }

    /// Returns the contents of the operands of a rank before call `index`.
    pub(super) fn values(&self, index: usize, rank: usize) -> OperandValues {
        let tokens = &self.calls[index][rank];
        let (hidden, max_tokens) = (self.hidden as usize, self.max_tokens as usize);
        let entries = max_tokens * self.top_k as usize;
        let values = (0..max_tokens * hidden).map(|i| match i / hidden < tokens.len() {
            true => token_value(index, rank, i / hidden, i % hidden, hidden),
            false => f32::NAN, // Kernels must not read beyond the tokens.
        });
        let mut topk_ids: Vec<i32> = tokens.iter().flatten().copied().collect();
        topk_ids.resize(entries, NOT_WRITTEN);
        let top_k = self.top_k as usize;
        let mut row_indices = vec![NOT_WRITTEN; tokens.len() * top_k];
        row_indices.resize(entries, ROW_INDEX_OF_NO_TOKEN);
        let topk_weights = topk_ids.iter().enumerate().map(|(i, id)| match *id {
            NO_CHOICE => f32::NAN, // The weight of such a choice has no effect.
            _ => self.topk_weight(i / top_k, i % top_k),
        });
        let topk_weights: Vec<f32> = topk_weights.collect();
        let (topk_ids, topk_weights) = match self.router.chooses() {
            true => (vec![NOT_WRITTEN; entries], vec![f32::NAN; entries]),
            false => (topk_ids, topk_weights),
        };
        let cols = self.intermediate as usize;
        OperandValues {
            tokens: values.collect(),
            a_scales: self.token_scales(index, rank),
            logits: self.logits(index, rank),
            num_tokens: [self.num_tokens.unwrap_or(tokens.len() as i32)],
            topk_ids,
            topk_weights,
            rows: vec![f32::NAN; self.max_rows() * cols],
            expert_offsets: vec![-1; self.local_experts() + 1],
            row_indices,
            sums: vec![f32::NAN; max_tokens * self.sum_cols()],
        }
    }

    /// Returns whether all rows, sums and partial sums are exact, or else whether the reference rounds as kernels do.
    pub fn is_exact(&self) -> bool {
        // The reference quantises rows as kernels do, and adds up results in the same order.
        if self.quantises || self.has_down() && self.scales != Scales::None {
            return true;
        }
        self.calls.iter().enumerate().all(|(index, call)| {
            let mut tokens = call
                .iter()
                .enumerate()
                .flat_map(|(rank, tokens)| (0..tokens.len()).map(move |token| (rank, token)));
            tokens.all(|(rank, token)| {
                // The sums of each rank, then the sums of each node, and the total.
                let (cols, world) = (self.intermediate as usize, self.world as usize);
                let (nodes, local_world) = (self.nodes as usize, world / self.nodes as usize);
                let mut sums = vec![vec![0.0; cols]; world + nodes + 1];
                let mut are_exact = true;
                for (entry, expert) in choices(&call[rank][token]) {
                    let row = self.product(index, (rank, token), expert);
                    let of_rank = expert / self.local_experts();
                    for of in [of_rank, world + of_rank / local_world, world + nodes] {
                        for (sum, x) in sums[of].iter_mut().zip(&row) {
                            *sum += self.topk_weight(token, entry) * x;
                        }
                    }
                    are_exact &= row.iter().all(is_exact);
                }
                are_exact && sums.iter().flatten().all(is_exact)
            })
        })
    }

    /// Returns the number of columns of an expert's weight.
    pub(super) fn weight_cols(&self) -> usize {
        self.intermediate as usize * if self.swiglu { 2 } else { 1 }
    }

    /// Returns the result of an expert for a token: the product with the expert's weight, or `silu(gate) * up`. An element of
    /// the weight has one of three values, depending on its row and column. Three sums of each block of K therefore suffice for
    /// all columns.
    fn product(&self, index: usize, (rank, token): (usize, usize), expert: usize) -> Vec<f32> {
        let hidden = self.hidden as usize;
        let per_block =
            hidden
                .div_ceil(self.scale_blocks())
                .next_multiple_of(match self.scale_blocks() {
                    1 => 1,
                    _ => SCALE_BLOCK as usize,
                });
        let mut blocks = vec![[0.0; 3]; self.scale_blocks()];
        for i in 0..hidden {
            let sums = &mut blocks[i / per_block];
            sums[weight_kind(expert, i, 0)] += token_value(index, rank, token, i, hidden);
        }
        let of = |col: usize, sums: &[f32; 3]| -> f32 {
            let weights = (0..3).map(|kind| WEIGHTS[(kind + weight_kind(0, 0, col)) % 3]);
            sums.iter().zip(weights).map(|(sum, w)| sum * w).sum()
        };
        let cols = self.intermediate as usize;
        let product = |col: usize| -> f32 {
            let blocks = blocks.iter().enumerate().map(|(block, sums)| {
                self.scale(index, (rank, token), expert, col, block) * of(col, sums)
            });
            blocks.sum()
        };
        let of_col = |col| match self.swiglu {
            true => product(col).max(0.0) * product(cols + col),
            false => product(col),
        };
        (0..cols).map(of_col).collect()
    }

    /// Returns the column of an expert's rows that its down projection takes to a column of the result. All other weights of the
    /// column are 0.
    fn down_source(&self, expert: usize, col: usize) -> usize {
        (col * 7 + expert * 3) % self.intermediate as usize
    }

    /// Returns the down projections of a rank's experts.
    pub(super) fn down_weights(&self, rank: usize) -> Vec<f32> {
        let (hidden, cols) = (self.hidden as usize, self.intermediate as usize);
        let first = rank * self.local_experts();
        let of = |expert: usize, i: usize| {
            let (row, col) = match self.nk {
                true => (i % cols, i / cols),
                false => (i / hidden, i % hidden),
            };
            f32::from(u8::from(self.down_source(expert, col) == row))
        };
        (first..first + self.local_experts())
            .flat_map(|expert| (0..hidden * cols).map(move |i| of(expert, i)))
            .collect()
    }

    /// Returns the result of an expert for a token.
    fn result(&self, index: usize, token: (usize, usize), expert: usize) -> Vec<f32> {
        let row = self.product(index, token, expert);
        if !self.has_down() {
            return row;
        }
        let cols = 0..self.hidden as usize;
        let source = |col| self.down_source(expert, col);
        if self.scales == Scales::None {
            return cols.map(|col| row[source(col)]).collect();
        }
        let (row, block) = (quantised(&row), SCALE_BLOCK as usize);
        let result = |col| row[source(col)] * down_scale(expert, col / block, source(col) / block);
        cols.map(|col| rounded(f64::from(result(col)), self.dtype.of_results()))
            .collect()
    }

    /// Returns the weighted sum of a token's rows. All terms are whole numbers, so the sum is exact until it is rounded.
    fn sum(&self, index: usize, (rank, token): (usize, usize)) -> Vec<f32> {
        let mut sum = vec![0.0; self.sum_cols()];
        for (entry, expert) in choices(&self.calls[index][rank][token]) {
            let row = self.result(index, (rank, token), expert);
            for (sum, x) in sum.iter_mut().zip(row) {
                *sum += self.topk_weight(token, entry) * x;
            }
        }
        let rounded_sums = sum
            .iter()
            .map(|x| rounded(f64::from(*x), self.dtype.of_results()));
        rounded_sums.collect()
    }

    /// Returns the expected results of a rank.
    pub(super) fn expected(&self, index: usize, routing: &Routing, rank: usize) -> Outputs {
        let (cols, local) = (self.intermediate as usize, self.local_experts());
        let (mut rows, mut expert_offsets) = (Vec::new(), vec![0]);
        let mut row_indices = vec![NO_CHOICE; routing[rank].len() * self.top_k as usize];
        row_indices.resize(
            (self.max_tokens * self.top_k) as usize,
            ROW_INDEX_OF_NO_TOKEN,
        );
        for expert in 0..self.experts as usize {
            let is_here = expert / local == rank;
            let before = (expert / local * local..expert)
                .map(|e| rows_of(routing, e))
                .sum::<usize>();
            let mut row = before;
            for (source, tokens) in routing.iter().enumerate() {
                for (token, entries) in tokens.iter().enumerate() {
                    let Some(entry) = entries.iter().position(|e| *e as usize == expert) else {
                        continue;
                    };
                    if source == rank {
                        let row_index = expert / local * self.max_rows() + row;
                        row_indices[token * self.top_k as usize + entry] = row_index as i32;
                    }
                    if is_here {
                        let row = self.product(index, (source, token), expert);
                        rows.extend(if self.quantises { quantised(&row) } else { row });
                    }
                    row += 1;
                }
            }
            if is_here {
                expert_offsets.push(row as i32);
            }
        }
        rows.resize(self.max_rows() * cols, f32::NAN);
        let mut sums = Vec::new();
        for token in 0..routing[rank].len() {
            sums.extend(self.sum(index, (rank, token)));
        }
        sums.resize(self.max_tokens as usize * self.sum_cols(), f32::NAN);
        let entries = (self.max_tokens * self.top_k) as usize;
        let mut topk_ids: Vec<i32> = routing[rank].iter().flatten().copied().collect();
        let weights = 0..topk_ids.len();
        let top_k = self.top_k as usize;
        let weights = weights.map(|i| self.topk_weight(i / top_k, i % top_k));
        let mut topk_weights: Vec<f32> = weights.collect();
        topk_ids.resize(entries, NOT_WRITTEN);
        topk_weights.resize(entries, f32::NAN);
        Outputs {
            topk_ids,
            topk_weights,
            row_indices,
            expert_offsets,
            rows,
            sums,
        }
    }
}

/// Returns the choices that a token has: the index of each among the top-k entries, and the expert.
fn choices(ids: &[i32]) -> impl Iterator<Item = (usize, usize)> {
    let all = ids.iter().enumerate();
    all.filter(|(_, id)| **id != NO_CHOICE)
        .map(|(entry, id)| (entry, *id as usize))
}

/// Returns whether the sums of all tokens without a row are +0 in each bit.
pub(super) fn are_empty_sums_zero(sums: &[f32], tokens: &[Vec<i32>], cols: usize) -> bool {
    let sums_of_tokens = sums.chunks(cols).zip(tokens);
    sums_of_tokens
        .filter(|(_, ids)| choices(ids).next().is_none())
        .all(|(sum, _)| sum.iter().all(|x| x.to_bits() == 0))
}

/// Returns the number of rows of an expert in a call.
fn rows_of(routing: &Routing, expert: usize) -> usize {
    let all = routing.iter().flatten().flatten();
    all.filter(|id| **id as usize == expert).count()
}

/// Returns whether all elements are equal, or NaN in both slices because they are not written.
pub(super) fn same(got: &[f32], expected: &[f32]) -> bool {
    got.len() == expected.len()
        && got
            .iter()
            .zip(expected)
            .all(|(got, want)| got == want || got.is_nan() && want.is_nan())
}
