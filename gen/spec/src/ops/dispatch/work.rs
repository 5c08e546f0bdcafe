//! The amounts that ranks compute and send if experts are chosen evenly and every rank has the largest number of tokens.

use super::cost;
use super::op_plan::DispatchPlan;
use crate::device::Device;
use crate::ops::gemm::Split;
use crate::roofline::{Bound, Traffic};
use crate::topology::Topology;

/// The average distribution of one rank's tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedRouting {
    /// Rows of each expert.
    pub expert_rows: f64,
    /// Rows of a rank.
    pub rows: f64,
    /// Tokens that a rank sends. A token is sent once to each rank of the node that has an expert of the token. Across nodes,
    /// forwarded tokens are included.
    pub sent_tokens: f64,
    /// Tokens that a rank puts. A token is put once to each other node that has an expert of the token.
    pub put_tokens: f64,
}

impl ExpectedRouting {
    /// The expected routing of `max_tokens` tokens per rank that each choose `top_k` of `experts` at random, on one node.
    #[must_use]
    pub fn on_one_node(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> Self {
        let topology = Topology {
            nodes: 1,
            local_world: world,
        };
        Self::of(topology, experts, top_k, max_tokens)
    }

    /// The expected routing on any number of nodes.
    #[must_use]
    pub fn of(topology: Topology, experts: u64, top_k: u64, max_tokens: u64) -> Self {
        let rows = (max_tokens * top_k) as f64;
        // Tokens some of whose experts are on one of `parts` equal parts of the ranks.
        let there = |parts: u32| {
            let elsewhere = experts - experts / u64::from(parts);
            let none: f64 = (0..top_k)
                .map(|i| elsewhere.saturating_sub(i) as f64 / (experts - i) as f64)
                .product();
            max_tokens as f64 * (1.0 - none)
        };
        let mates = f64::from(topology.nodes * (topology.local_world - 1));
        Self {
            expert_rows: rows * f64::from(topology.world()) / experts as f64,
            rows,
            sent_tokens: mates * there(topology.world()),
            put_tokens: f64::from(topology.peers()) * there(topology.nodes),
        }
    }
}

impl DispatchPlan {
    /// The average distribution of tokens if experts are chosen evenly.
    #[must_use]
    pub fn expected_routing(&self, topology: Topology) -> ExpectedRouting {
        let shape = self.shape;
        ExpectedRouting::of(topology, shape.experts, shape.top_k, shape.max_tokens)
    }
}

pub(super) fn traffic(op_plan: &DispatchPlan, topology: Topology) -> Traffic {
    let (shape, types, world) = (op_plan.shape, op_plan.types(), topology.world());
    let routing = op_plan.expected_routing(topology);
    let rows = routing.rows as u64;
    let touched = 1.0 - (-routing.expert_rows).exp(); // experts that have rows
    let weights = op_plan.local_experts(world) as f64 * touched;
    let weight_elems = (weights * (shape.hidden * op_plan.weight_cols()) as f64) as u64;
    let token_elems =
        routing.rows.min(shape.max_tokens as f64 * f64::from(world)) as u64 * shape.hidden;
    if !op_plan.dispatches() {
        let rows_bytes = rows * types.tokens.bytes() * shape.intermediate;
        return returned(op_plan, (world, rows, weights), rows_bytes);
    }
    let first = Traffic {
        link_bytes: (routing.sent_tokens * op_plan.token_bytes() as f64) as u64,
        nic_bytes: (routing.put_tokens * op_plan.token_bytes() as f64) as u64,
        memory_bytes: weight_elems * types.weights.bytes()
            + token_elems * types.tokens.bytes()
            + rows * shape.intermediate * types.c.bytes(),
        flops: 2 * rows * shape.hidden * op_plan.weight_cols(),
        factors: types.tokens,
    };
    if !op_plan.returns() {
        return first;
    }
    let down = returned(
        op_plan,
        (world, rows, weights),
        rows * op_plan.hidden_row_bytes(),
    );
    Traffic {
        link_bytes: first.link_bytes + down.link_bytes,
        memory_bytes: first.memory_bytes + down.memory_bytes,
        flops: first.flops + down.flops,
        ..first
    }
}

/// The product of `rows` rows of `rows_bytes` bytes with the weights of `weights` experts, which returns to the tokens of the rows. The
/// product stores a result for each choice on the rank of the token. That rank reads the results again to add them up.
fn returned(
    op_plan: &DispatchPlan,
    (world, rows, weights): (u32, u64, f64),
    rows_bytes: u64,
) -> Traffic {
    let (shape, types) = (op_plan.shape, op_plan.types());
    let product = shape.hidden * shape.intermediate;
    let results = rows * op_plan.result_bytes();
    Traffic {
        link_bytes: results * u64::from(world - 1) / u64::from(world),
        memory_bytes: (weights * product as f64) as u64 * types.weights.bytes()
            + rows_bytes
            + 2 * results
            + shape.max_tokens * op_plan.result_bytes(),
        flops: 2 * rows * product,
        factors: types.tokens,
        ..Traffic::default()
    }
}

/// The average number of tiles of the products.
fn products(op_plan: &DispatchPlan, topology: Topology, device: &Device) -> cost::DispatchGemm {
    let (routing, world) = (op_plan.expected_routing(topology), topology.world());
    // With many rows, half of an expert's last tile is empty on average; with few rows, some experts have no row.
    let per_expert = routing.expert_rows / f64::from(op_plan.tile.m);
    let row_tiles = (per_expert + 0.5).min(routing.expert_rows).max(per_expert);
    let row_tiles = row_tiles * op_plan.local_experts(world) as f64;
    let [tiles, down_tiles] =
        [op_plan.col_tiles(), op_plan.down_col_tiles()].map(|cols| row_tiles * cols as f64);
    let (hidden, intermediate) = (op_plan.shape.hidden, op_plan.shape.intermediate);
    let (tiles, k, down_tiles) = match op_plan.dispatches() {
        true => (tiles, hidden, down_tiles),
        false => (down_tiles, intermediate, 0.0),
    };
    // A warpgroup without rows computes nothing. Rows of experts vary like a Poisson variable.
    let half = f64::from(op_plan.tile.m) / 2.0;
    let is_half_empty = op_plan.split == Split::Rows
        && routing.expert_rows + 2.0 * routing.expert_rows.sqrt() <= half;
    cost::DispatchGemm {
        tile: op_plan.tile,
        tiles,
        tile_rows: op_plan.tile.m / if is_half_empty { 2 } else { 1 },
        routes: op_plan.dispatches(),
        down: (down_tiles, intermediate),
        types: op_plan.types(),
        k,
        ctas: device.sm_count,
        most_splits: op_plan.most_splits,
    }
}

/// Expected time, µs.
pub(super) fn estimate_us(op_plan: &DispatchPlan, topology: Topology, device: &Device) -> f64 {
    let bound = Bound::new(&traffic(op_plan, topology), device);
    cost::dispatch_us(products(op_plan, topology, device), &bound, device)
}

/// Expected time of the products alone, µs.
pub(super) fn products_us(op_plan: &DispatchPlan, topology: Topology, device: &Device) -> f64 {
    let bound = Bound::new(&traffic(op_plan, topology), device);
    cost::products_us(products(op_plan, topology, device), &bound, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_crosses_once_per_rank() {
        // 5.3 of 8 ranks at top-8 of 256 over 8 ranks.
        let routing = ExpectedRouting::on_one_node(8, 256, 8, 1024);
        let ranks = routing.sent_tokens / 1024.0;
        assert!((ranks - 7.0 / 8.0 * 5.3).abs() < 0.03, "{ranks}");
        assert_eq!(routing.expert_rows, 256.0);
        let all = ExpectedRouting::on_one_node(8, 8, 8, 10);
        assert_eq!(all.sent_tokens, 70.0);
        assert_eq!(ExpectedRouting::on_one_node(1, 256, 8, 10).sent_tokens, 0.0);
    }

    #[test]
    fn a_token_crosses_once_per_node() {
        let on = |nodes, local_world| {
            let topology = Topology { nodes, local_world };
            ExpectedRouting::of(topology, 256, 8, 1024)
        };
        // Top-8 of 256 reaches 5.3 of 8 nodes, for any number of ranks per node.
        for local_world in [1, 8] {
            let nodes = on(8, local_world).put_tokens / 1024.0;
            assert!((nodes - 7.0 / 8.0 * 5.3).abs() < 0.03, "{nodes}");
        }
        // Of two nodes, all but 1 in 270 tokens have an expert on the other node. A rank gets a token over NVLink unless it is
        // the rank that forwards the token.
        let two = on(2, 8);
        assert!((two.put_tokens / 1024.0 - 0.996).abs() < 0.002, "{two:?}");
        let flat = ExpectedRouting::on_one_node(16, 256, 8, 1024).sent_tokens;
        assert!(
            (two.sent_tokens - flat * 14.0 / 15.0).abs() < 1e-6,
            "{two:?}"
        );
        assert_eq!(on(16, 1).sent_tokens, 0.0);
    }
}
