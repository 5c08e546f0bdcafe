//! Reductions across several nodes: their candidates, and the puts that they need.

use super::super::config::GemmOp;
use super::super::core::CoreLayout;
use super::super::op_plan::{Reduction, TileOrder};
use super::super::spec::GemmSpec;
use super::candidate::{
    Candidate, ROUND_BYTES_OF_RESULTS, candidate, collect_unroll, partial_subs,
};
use crate::arch::Tile;
use crate::device::Device;
use crate::parts::network::PUT_BYTES;
use crate::plan::Network;

/// The number of puts into which a rank's tiles are divided over all peers, if puts are then large enough.
const PUTS: u32 = 8;
/// The fewest bytes of a put. The proxy and the NIC take a few µs for each put, which is longer than the transfer of fewer bytes.
const LEAST_PUT_BYTES: u32 = 1 << 17;
/// The most CTAs that communicate. More CTAs slow each other down.
const MAX_COMM_CTAS: u32 = 16;

/// The candidates across nodes. Every rank adds up tiles, and some tiles may have no rows. `order` has each tile once.
pub(super) fn candidates(
    spec: GemmSpec<'_>,
    device: &Device,
    core: &CoreLayout,
    mut order: TileOrder,
) -> Vec<Candidate> {
    let (tuning, tile, topology) = (spec.tuning(), core.tile, spec.topology);
    let results = spec.op() == GemmOp::GemmAr;
    let shard_tiles = if results {
        order.slots.div_ceil(spec.world())
    } else {
        let shard_row_tiles = spec.shard_rows().div_ceil(u64::from(tile.m)) as u32;
        order.shard_row_tiles = Some(shard_row_tiles);
        order.row_tiles = spec.world() * shard_row_tiles;
        shard_row_tiles * order.col_tiles
    };
    order.slots = spec.world() * shard_tiles;
    let comm_ctas = tuning
        .comm_ctas
        .unwrap_or_else(|| comm_ctas(spec, device, results));
    if comm_ctas >= device.sm_count || results && !core.holds_slots() {
        return Vec::new();
    }
    let orders = core.complete(spec, order, device.sm_count - comm_ctas);
    let partial_bytes = spec.types().partial.bytes() as u32;
    let tile_bytes = tile.m * tile.n * partial_bytes;
    let owner_tiles = topology.nodes * shard_tiles;
    let put_tile_bytes = put_rows(spec, tile) * tile.n * partial_bytes;
    let with_order = |order: TileOrder| {
        let round_tiles = match tuning.round_tiles {
            _ if topology.local_world == 1 => owner_tiles,
            Some(tiles) => tiles,
            None if order.pace_steps > 0 => device.sm_count.div_ceil(topology.local_world),
            None => ROUND_BYTES_OF_RESULTS / tile_bytes,
        };
        let reduction = Reduction {
            shots: 2,
            owners: topology.local_world,
            owner_tiles,
            round_tiles: round_tiles.min(owner_tiles),
            shard_tiles,
            put_tiles: put_tiles(put_tile_bytes, shard_tiles, topology.peers()),
            partial_subs: partial_subs(spec, core, &order),
            packets_in_flight: 0,
            results,
            on_peers: false,
            collect_unroll: collect_unroll(spec, false),
        };
        let candidate = candidate(spec, device, core, order, Some(reduction));
        Candidate {
            comm_ctas,
            ..candidate
        }
    };
    orders.into_iter().map(with_order).collect()
}

/// Rows of a tile that are put: all rows of the tile, or only the owner's rows if these are at most 64. See `PutSlots` in
/// mk/comm/put_slots.cuh.
pub(in crate::ops::gemm) fn put_rows(spec: GemmSpec<'_>, tile: Tile) -> u32 {
    let owner_rows = match spec.op() {
        GemmOp::GemmAr => spec.shape.m,
        _ => spec.shard_rows(),
    };
    match owner_rows.next_multiple_of(16) {
        rows @ ..=64 => rows as u32,
        _ => tile.m,
    }
}

/// Tiles of a put: few if a rank has few tiles, since ranks wait for the last put; more if tiles are small or peers are many.
fn put_tiles(tile_bytes: u32, shard_tiles: u32, peers: u32) -> u32 {
    let most = shard_tiles.div_ceil(PUTS.div_ceil(peers));
    let least = LEAST_PUT_BYTES.div_ceil(tile_bytes);
    (PUT_BYTES / tile_bytes)
        .min(most)
        .max(least)
        .clamp(1, shard_tiles.max(1))
}

/// CTAs that communicate across nodes: the fewest that forward results as fast as NICs bring them; 1 without results.
fn comm_ctas(spec: GemmSpec<'_>, device: &Device, results: bool) -> u32 {
    if !results {
        return 1;
    }
    let forwarded = f64::from(spec.topology.local_world - 1) * device.nic_gb_s;
    let ctas = (forwarded / device.costs().comm_cta_gb_s).ceil() as u32;
    ctas.clamp(1, MAX_COMM_CTAS.min(device.sm_count.div_ceil(4)))
}

/// The puts that the kernel needs.
pub(super) fn network(spec: GemmSpec<'_>, tile: Tile, r: &Reduction) -> Network {
    let dtype = match r.results {
        true => spec.types().c,
        false => spec.types().partial,
    };
    Network {
        // One channel for sums, and another one for results.
        channels: 1 + u16::from(r.results),
        puts: r.shard_tiles.div_ceil(r.put_tiles) + u32::from(spec.takes_rows()),
        put_bytes: u64::from(r.put_tiles * put_rows(spec, tile) * tile.n) * dtype.bytes(),
    }
}
