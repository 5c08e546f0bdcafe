//! The traffic of operators that reduce, on one node and on several nodes.

use super::super::config::{GemmOp, GemmShape};
use super::super::operands;
use super::super::spec::GemmSpec;
use crate::roofline::Traffic;

/// Bytes of one call. With `results`, owners also send the sums to all ranks.
pub(super) fn traffic(spec: GemmSpec<'_>, results: bool) -> Traffic {
    let GemmShape { m, n, k } = spec.shape;
    if spec.crosses_nodes() {
        return across_nodes(spec, results);
    }
    let peers = u64::from(spec.world() - 1);
    let types = spec.types();
    let (row_bytes, result_row_bytes) = (n * types.partial.bytes(), n * types.c.bytes());
    let parts = (peers * spec.shard_rows()).min(m) * row_bytes;
    let (sent_bytes, c_rows) = match (spec.op(), results) {
        (GemmOp::GemmRs, _) => (parts, spec.shard_rows()),
        (_, true) => (peers * m * (row_bytes + result_row_bytes) / (peers + 1), m),
        (_, false) => (peers * m * row_bytes, m),
    };
    Traffic {
        nic_bytes: 0,
        link_bytes: sent_bytes,
        memory_bytes: operands::memory_bytes(spec, c_rows),
        flops: 2 * m * n * k,
        factors: spec.types().a,
    }
}

/// The least traffic of a call: across nodes with results, on one node the smaller traffic of both ways, because results can be
/// wider than sums.
pub(super) fn least(spec: GemmSpec<'_>) -> Traffic {
    let with_results = traffic(spec, true);
    if spec.crosses_nodes() {
        return with_results;
    }
    let without = traffic(spec, false);
    match without.link_bytes < with_results.link_bytes {
        true => without,
        false => with_results,
    }
}

/// Bytes of one call: partial sums and results inside a node, sums and results between nodes.
fn across_nodes(spec: GemmSpec<'_>, results: bool) -> Traffic {
    let GemmShape { m, n, k } = spec.shape;
    let topology = spec.topology;
    let (local_peers, peers) = (
        u64::from(topology.local_world - 1),
        u64::from(topology.peers()),
    );
    let shard_rows = spec.shard_rows();
    let results = results && spec.op() == GemmOp::GemmAr;
    let types = spec.types();
    let row_bytes = match results {
        true => n * (types.partial.bytes() + types.c.bytes()),
        false => n * types.partial.bytes(),
    };
    let c_rows = if results { m } else { shard_rows };
    Traffic {
        link_bytes: u64::from(topology.nodes) * local_peers * shard_rows * row_bytes,
        nic_bytes: peers * shard_rows * row_bytes,
        memory_bytes: operands::memory_bytes(spec, c_rows),
        flops: 2 * m * n * k,
        factors: spec.types().a,
    }
}
