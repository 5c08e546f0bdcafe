//! What operands hold, and what a call must make of them, by hand: loops over all tokens.

use super::buffers::{Got, Values};
use super::layer::{Call, Layer};
use mkernel::half::bf16;

/// Small whole numbers, few of them not 0: sums stay exact in bf16.
/// In a long row fewer of a hundred.
fn token_value(call: usize, rank: usize, token: usize, col: usize, hidden: usize) -> f32 {
    let period = 97.max(hidden / 5);
    let x = (call * 7919 + rank * 104_729 + token * 1299 + col * 31) % period;
    [1.0, -1.0, 2.0].get(x / 2).copied().unwrap_or(0.0)
}

const WEIGHTS: [f32; 3] = [-1.0, 0.0, 1.0];

fn weight_kind(expert: usize, row: usize, col: usize) -> usize {
    (expert * 31 + row * 17 + col * 7) % 3
}

fn weight_value(expert: usize, row: usize, col: usize) -> f32 {
    WEIGHTS[weight_kind(expert, row, col)]
}

fn gate_value(token: usize, choice: usize) -> f32 {
    [1.0, 2.0, -1.0][(token + 2 * choice) % 3]
}

impl Layer {
    fn max_rows(&self) -> usize {
        let most =
            mkernel::spec::config::all_rows(self.world, self.experts, self.top_k, self.max_tokens);
        self.max_rows.map_or(most, |rows| most.min(rows.into())) as usize
    }

    pub(super) fn weights(&self, rank: usize) -> Vec<bf16> {
        let (hidden, cols) = (self.hidden as usize, self.intermediate as usize);
        let first = rank * self.local();
        let of = |expert: usize, i: usize| match self.nk {
            true => weight_value(expert, i % hidden, i / hidden),
            false => weight_value(expert, i / cols, i % cols),
        };
        (first..first + self.local())
            .flat_map(|expert| (0..hidden * cols).map(move |i| bf16::from_f32(of(expert, i))))
            .collect()
    }

    /// What operands hold before call `index`.
    pub(super) fn values(&self, index: usize, rank: usize) -> Values {
        let tokens = &self.calls[index][rank];
        let (hidden, max_tokens) = (self.hidden as usize, self.max_tokens as usize);
        let choices = max_tokens * self.top_k as usize;
        let values = (0..max_tokens * hidden).map(|i| match i / hidden < tokens.len() {
            true => bf16::from_f32(token_value(index, rank, i / hidden, i % hidden, hidden)),
            false => bf16::NAN, // nobody must look there
        });
        let mut ids: Vec<i32> = tokens.iter().flatten().copied().collect();
        ids.resize(choices, -7);
        let top_k = self.top_k as usize;
        let gates = (0..choices).map(|i| gate_value(i / top_k, i % top_k));
        let cols = self.intermediate as usize;
        Values {
            tokens: values.collect(),
            count: [self.count.unwrap_or(tokens.len() as i32)],
            ids,
            gates: gates.collect(),
            rows: vec![bf16::NAN; self.max_rows() * cols],
            offsets: vec![-1; self.local() + 1],
            places: vec![-1; choices],
            sums: vec![bf16::NAN; max_tokens * cols],
        }
    }

    /// Whether rows, sums, and the parts of sums that travel are numbers of bf16: whole ones up to 256.
    pub fn is_exact(&self) -> bool {
        self.calls.iter().enumerate().all(|(index, call)| {
            let mut tokens = call
                .iter()
                .enumerate()
                .flat_map(|(rank, tokens)| (0..tokens.len()).map(move |token| (rank, token)));
            tokens.all(|(rank, token)| {
                // By rank, by node, and at the end of all.
                let (cols, world) = (self.intermediate as usize, self.world as usize);
                let (nodes, local_world) = (self.nodes as usize, world / self.nodes as usize);
                let mut sums = vec![vec![0.0; cols]; world + nodes + 1];
                let mut is_exact = true;
                for (choice, expert) in call[rank][token].iter().enumerate() {
                    let expert = *expert as usize;
                    let row = self.product(index, (rank, token), expert);
                    let of_rank = expert / self.local();
                    for of in [of_rank, world + of_rank / local_world, world + nodes] {
                        for (sum, x) in sums[of].iter_mut().zip(&row) {
                            *sum += gate_value(token, choice) * x;
                        }
                    }
                    is_exact &= row.iter().all(|x| x.abs() <= 256.0);
                }
                is_exact && sums.iter().flatten().all(|x: &f32| x.abs() <= 256.0)
            })
        })
    }

    /// A token's row of an expert. Weights are of three kinds, by their place: so three sums serve all columns.
    fn product(&self, index: usize, (rank, token): (usize, usize), expert: usize) -> Vec<f32> {
        let hidden = self.hidden as usize;
        let mut sums = [0.0; 3];
        for i in 0..hidden {
            sums[weight_kind(expert, i, 0)] += token_value(index, rank, token, i, hidden);
        }
        let of = |col| {
            let weights = (0..3).map(|kind| WEIGHTS[(kind + weight_kind(0, 0, col)) % 3]);
            sums.iter().zip(weights).map(|(sum, w)| sum * w).sum()
        };
        let of_column: [f32; 3] = std::array::from_fn(of);
        let cols = 0..self.intermediate as usize;
        cols.map(|col| of_column[col % 3]).collect()
    }

    /// What its experts make of a token.
    fn sum(&self, index: usize, (rank, token): (usize, usize)) -> Vec<f32> {
        let mut sum = vec![0.0; self.intermediate as usize];
        for (choice, expert) in self.calls[index][rank][token].iter().enumerate() {
            let row = self.product(index, (rank, token), *expert as usize);
            for (sum, x) in sum.iter_mut().zip(row) {
                *sum += gate_value(token, choice) * x;
            }
        }
        sum
    }

    /// By hand: loops over all tokens.
    pub(super) fn expected(&self, index: usize, call: &Call, rank: usize) -> Got {
        let (cols, local) = (self.intermediate as usize, self.local());
        let (mut rows, mut offsets) = (Vec::new(), vec![0]);
        let mut places = vec![-1; (self.max_tokens * self.top_k) as usize];
        for expert in 0..self.experts as usize {
            let is_here = expert / local == rank;
            let before = (expert / local * local..expert)
                .map(|e| count(call, e))
                .sum::<usize>();
            let mut row = before;
            for (source, tokens) in call.iter().enumerate() {
                for (token, choices) in tokens.iter().enumerate() {
                    let Some(choice) = choices.iter().position(|e| *e as usize == expert) else {
                        continue;
                    };
                    if source == rank {
                        let place = expert / local * self.max_rows() + row;
                        places[token * self.top_k as usize + choice] = place as i32;
                    }
                    if is_here {
                        rows.extend(self.product(index, (source, token), expert));
                    }
                    row += 1;
                }
            }
            if is_here {
                offsets.push(row as i32);
            }
        }
        rows.resize(self.max_rows() * cols, f32::NAN);
        let mut sums = Vec::new();
        for token in 0..call[rank].len() {
            sums.extend(self.sum(index, (rank, token)));
        }
        sums.resize(self.max_tokens as usize * cols, f32::NAN);
        Got {
            places,
            offsets,
            rows,
            sums,
        }
    }
}

fn count(call: &Call, expert: usize) -> usize {
    let all = call.iter().flatten().flatten();
    all.filter(|id| **id as usize == expert).count()
}

/// Equal, or both not written.
pub(super) fn same(got: &[f32], expected: &[f32]) -> bool {
    got.len() == expected.len()
        && got
            .iter()
            .zip(expected)
            .all(|(got, want)| got == want || got.is_nan() && want.is_nan())
}
