//! What ranks compute and send, if experts are chosen evenly and every rank has as many tokens as it can.

use super::{DispatchPlan, ELEM_BYTES, TILE_K};
use crate::cost::{self, Bound};
use crate::device::Device;
use crate::plan::Traffic;

/// Where tokens go on average, of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Rows of each expert.
    pub expert_rows: f64,
    /// Rows of a rank.
    pub rows: f64,
    /// Tokens that a rank sends, once to each rank that has an expert of theirs.
    pub sent_tokens: f64,
}

impl Spread {
    /// Of `max_tokens` tokens per rank that each choose `top_k` of `experts` at random.
    #[must_use]
    pub fn even(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> Self {
        let rows = (max_tokens * top_k) as f64;
        let ranks = f64::from(world);
        // None of a token's experts is on a certain rank.
        let elsewhere = experts - experts / u64::from(world);
        let none: f64 = (0..top_k)
            .map(|i| elsewhere.saturating_sub(i) as f64 / (experts - i) as f64)
            .product();
        Self {
            expert_rows: rows * ranks / experts as f64,
            rows,
            sent_tokens: max_tokens as f64 * (ranks - 1.0) * (1.0 - none),
        }
    }
}

impl DispatchPlan {
    /// Where tokens go if experts are chosen evenly.
    #[must_use]
    pub fn spread(&self, world: u32) -> Spread {
        let shape = self.shape;
        Spread::even(world, shape.experts, shape.top_k, shape.max_tokens)
    }
}

pub(super) fn traffic(body: &DispatchPlan, world: u32) -> Traffic {
    let shape = body.shape;
    let spread = body.spread(world);
    let rows = spread.rows as u64;
    let touched = 1.0 - (-spread.expert_rows).exp(); // experts that have rows
    let weights = body.local_experts(world) as f64 * touched;
    let weight_elems = (weights * (shape.hidden * body.weight_cols()) as f64) as u64;
    let token_elems =
        spread.rows.min(shape.max_tokens as f64 * f64::from(world)) as u64 * shape.hidden;
    Traffic {
        link_bytes: (spread.sent_tokens * body.token_bytes() as f64) as u64,
        nic_bytes: 0,
        memory_bytes: ELEM_BYTES * (weight_elems + token_elems + rows * shape.intermediate),
        flops: 2 * rows * shape.hidden * body.weight_cols(),
    }
}

/// Expected time, µs.
pub(super) fn estimate_us(body: &DispatchPlan, world: u32, device: &Device) -> f64 {
    let spread = body.spread(world);
    let ctas = device.sm_count - body.comm_ctas;
    // Of many rows half of the last tile is empty; of few, some experts have none.
    let per_expert = spread.expert_rows / f64::from(body.tile.m);
    let row_tiles = (per_expert + 0.5).min(spread.expert_rows).max(per_expert);
    let col_tiles = body.shape.intermediate.div_ceil(body.tile_cols().into()) as f64;
    let tiles = row_tiles * col_tiles * body.local_experts(world) as f64;
    let steps = body.shape.hidden.div_ceil(TILE_K.into());
    let gemm = cost::DispatchGemm {
        tile: body.tile,
        tiles,
        k: steps * u64::from(TILE_K),
        ctas,
    };
    cost::dispatch_us(gemm, &Bound::new(&traffic(body, world), device), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_crosses_once_per_rank() {
        // 5.3 of 8 ranks at top-8 of 256 over 8 ranks.
        let spread = Spread::even(8, 256, 8, 1024);
        let ranks = spread.sent_tokens / 1024.0;
        assert!((ranks - 7.0 / 8.0 * 5.3).abs() < 0.03, "{ranks}");
        assert_eq!(spread.expert_rows, 256.0);
        let all = Spread::even(8, 8, 8, 10);
        assert_eq!(all.sent_tokens, 70.0);
        assert_eq!(Spread::even(1, 256, 8, 10).sent_tokens, 0.0);
    }
}
