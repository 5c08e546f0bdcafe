//! What operators that reduce have in the workspace, and their arguments.

use super::super::core::{self, CoreLayout, TILE_K};
use super::super::{GemmSpec, Reduction, TileOrder, Workspace};
use super::ELEM_BYTES;
use crate::abi::{ArgKind, ArgLayout, Extent, FLAG_STRIDE_BYTES, Operand};
use crate::config::{GemmOp, Tile};
use crate::plan::{common_args, network};

/// Symmetric memory.
pub(super) fn workspace(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    order: &TileOrder,
    reduction: Option<&Reduction>,
) -> Workspace {
    let mut parts = core.order_regions(order);
    if let Some(r) = reduction {
        let tile_bytes = u64::from(core.tile.m * core.tile.n) * ELEM_BYTES;
        if spec.op() == GemmOp::GemmRs && r.owners < spec.topology().local_world {
            parts.push(("begun", u64::from(spec.world()) * FLAG_STRIDE_BYTES));
        }
        if r.shots == 1 {
            let sources = spec.world() + u32::from(r.results);
            let tiles = u64::from(sources * r.owner_tiles);
            parts.push(("slots", 2 * tiles * 2 * tile_bytes));
            return Workspace::new(parts);
        }
        let topology = spec.topology();
        // A rank alone on its node gets no parts of sums.
        let sources = match (topology.local_world, topology.nodes) {
            (1, 2..) => 0,
            (local_world, _) => local_world,
        };
        let slots = u64::from(sources) * u64::from(r.owner_tiles);
        parts.push(("partial_flags", slots * FLAG_STRIDE_BYTES));
        parts.push(("partials", 2 * slots * tile_bytes));
        if r.put_tiles > 0 {
            let puts = u64::from(topology.nodes * r.shard_tiles.div_ceil(r.put_tiles));
            let sums = u64::from(topology.peers() * r.shard_tiles);
            parts.push(("put_flags", puts * FLAG_STRIDE_BYTES));
            parts.push(("sums_out", 2 * sums * tile_bytes));
            parts.push(("sums_in", 2 * sums * tile_bytes));
            parts.extend(network::arrived_region(
                spec.topology(),
                1 + u32::from(r.results),
            ));
        }
        if r.results {
            let tiles = u64::from(spec.world().min(r.owners * topology.nodes) * r.shard_tiles);
            parts.push(("result_flags", tiles * FLAG_STRIDE_BYTES));
            let elems = u64::from(core.tile.m * core.tile.n);
            parts.push((
                "results",
                2 * tiles * elems * spec.epilogue().output.bytes(),
            ));
        }
    }
    Workspace::new(parts)
}

/// This rank's rows of C.
pub(super) fn c_rows(spec: GemmSpec<'_>) -> Extent {
    match spec.op() {
        GemmOp::GemmRs => Extent::ShardRows {
            total: spec.shape.m,
            per_rank: spec.shard_rows(),
        },
        _ => Extent::Fixed(spec.shape.m),
    }
}

/// The kernel's parameter.
pub(super) fn args(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    (by_shards, one_shot, results): (bool, bool, bool),
) -> ArgLayout {
    let tile: Tile = core.tile;
    let a = [Extent::Fixed(spec.shape.k), Extent::Fixed(spec.shape.m)];
    // Rows out of bounds take longer to fill with zeros than others to load, and none of them matters. The swizzle
    // repeats every 8 rows.
    let most_rows = if by_shards {
        spec.shard_rows()
    } else {
        spec.shape.m
    };
    let rows_of_a = u64::from(tile.m).min(most_rows.next_multiple_of(8)) as u32;
    let mut kinds = vec![
        ("a", core::operand_map(Operand::A, a, [TILE_K, rows_of_a])),
        ("b", core::b_map(spec, tile)),
    ];
    if !one_shot {
        kinds.push(("c", core::c_map(spec, c_rows(spec))));
    }
    if one_shot || results {
        kinds.push(("c_rows", ArgKind::Pointer(Operand::C)));
        kinds.push(("c_row_bytes", ArgKind::RowStrideBytes(Operand::C)));
    }
    kinds.extend(core::epilogue_args(spec));
    kinds.push(("workspaces", ArgKind::Workspaces));
    kinds.push(("host", ArgKind::HostPage));
    kinds.push(("deadline_ns", ArgKind::DeadlineNs));
    kinds.push(("rank", ArgKind::Rank));
    kinds.extend(common_args(spec.topology()));
    ArgLayout::new(kinds)
}
