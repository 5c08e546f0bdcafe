//! The scales of tokens, of weights and of hidden rows of e4m3.

use super::layer::Layer;
use crate::jobs::quantised::Quantised;
use mkernel::spec::Scales;
use mkernel::spec::plan::SCALE_BLOCK;

/// Returns the scale of a block of a token, or of a token.
fn token_scale(call: usize, rank: usize, token: usize, block: usize) -> f32 {
    [1.0, 2.0, 1.0][(call * 7 + rank * 5 + token * 4 + block * 2) % 3]
}

/// Returns the scale of columns of an expert's weight in a block of K: the scale of a column, of a block of columns, or
/// of the whole weight.
fn weight_scale(expert: usize, cols: usize, block: usize) -> f32 {
    [1.0, 0.5, 1.0][(expert * 5 + cols * 4 + block * 2) % 3]
}

/// Returns the scale of a block of an expert's down projection.
pub(super) fn down_scale(expert: usize, rows: usize, cols: usize) -> f32 {
    weight_scale(expert, rows, cols + 1)
}

/// Returns a row of e4m3 times the scales of its blocks, as kernels make it of sums.
#[must_use]
pub fn quantised(row: &[f32]) -> Vec<f32> {
    let blocks = row.chunks(SCALE_BLOCK as usize).flat_map(|block| {
        let Quantised { elements, scale } = Quantised::of(block);
        elements.into_iter().map(move |x| x.to_f32() * scale)
    });
    blocks.collect()
}

impl Layer {
    /// Returns the blocks of K that have scales of their own, or 1.
    pub(super) fn scale_blocks(&self) -> usize {
        self.scales.of_row(self.hidden).max(1) as usize
    }

    /// Returns the part of a weight's columns that has the scale of column `col`.
    fn scaled_cols(&self, col: usize) -> usize {
        let (block, cols) = (SCALE_BLOCK as usize, self.intermediate as usize);
        match self.scales {
            Scales::None | Scales::Tensor => 0,
            Scales::Row => col,
            Scales::Block => col / cols * cols.div_ceil(block) + col % cols / block,
        }
    }

    /// Returns the scales of the weights of a rank's experts.
    pub(super) fn weight_scales(&self, rank: usize) -> Vec<f32> {
        if self.scales == Scales::None {
            return Vec::new();
        }
        let (first, blocks) = (rank * self.local_experts(), self.scale_blocks());
        let cols = self.scaled_cols(self.weight_cols() - 1) + 1;
        (first..first + self.local_experts())
            .flat_map(|expert| {
                (0..cols * blocks).map(move |i| weight_scale(expert, i / blocks, i % blocks))
            })
            .collect()
    }

    /// Returns the scales of the down projections of a rank's experts.
    pub(super) fn down_scales(&self, rank: usize) -> Vec<f32> {
        if self.scales == Scales::None || !self.has_down() {
            return Vec::new();
        }
        let [rows, cols] =
            [self.hidden, self.intermediate].map(|size| size.div_ceil(SCALE_BLOCK) as usize);
        let first = rank * self.local_experts();
        (first..first + self.local_experts())
            .flat_map(|expert| {
                (0..rows * cols).map(move |i| down_scale(expert, i / cols, i % cols))
            })
            .collect()
    }

    /// Returns the factor that scales contribute to an expert's product in a block of K.
    pub(super) fn scale(
        &self,
        index: usize,
        (rank, token): (usize, usize),
        expert: usize,
        col: usize,
        block: usize,
    ) -> f32 {
        let of_token = match self.scales {
            Scales::None => return 1.0,
            Scales::Tensor => token_scale(1, 0, 0, 0),
            Scales::Row | Scales::Block => token_scale(index, rank, token, block),
        };
        of_token * weight_scale(expert, self.scaled_cols(col), block)
    }

    /// Returns the scales of a rank's tokens in call `index`. Scales of tokens that the rank does not have are NaN.
    pub(super) fn token_scales(&self, index: usize, rank: usize) -> Vec<f32> {
        let (tokens, blocks) = (self.calls[index][rank].len(), self.scale_blocks());
        match self.scales {
            Scales::None => Vec::new(),
            Scales::Tensor => vec![token_scale(1, 0, 0, 0)],
            Scales::Row | Scales::Block => (0..self.max_tokens as usize * blocks)
                .map(|i| match i / blocks < tokens {
                    true => token_scale(index, rank, i / blocks, i % blocks),
                    false => f32::NAN,
                })
                .collect(),
        }
    }
}
