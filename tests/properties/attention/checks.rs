//! The checks that hold for all ranks of a kernel.

use super::kernel::{Kernel, Keys, Tile};
use mkernel_spec::plan::TILE_ROWS;
use std::collections::{BTreeMap, BTreeSet};

/// Every tile of queries of the plan is taken once.
pub fn every_tile_of_queries_is_taken_once(kernels: &[Kernel]) {
    let kernel = &kernels[0];
    let taken: BTreeSet<&Tile> = kernel.all_tiles().iter().collect();
    let lengths = (taken.len(), kernel.all_tiles().len());
    let all = kernel.op_plan.tiles as usize;
    assert_eq!(lengths, (all, all), "{}", kernel.plan.id);
    let shape = kernel.op_plan.shape;
    for tile in taken {
        assert!(u64::from(tile.batch) < shape.batch && u64::from(tile.head) < shape.heads);
        let chunks = kernel.chunks().len() as u32;
        assert!(tile.chunk < chunks && tile.row < kernel.op_plan.segment_tiles * TILE_ROWS);
    }
}

/// The ranks together have all rows of the sequence, and each rank has the rows of the plan.
pub fn chunks_match_the_plan(kernels: &[Kernel]) {
    for kernel in kernels {
        let placement = kernel.op_plan.config.placement;
        for (index, chunk) in (0..).zip(kernel.chunks()) {
            let number = placement.chunk_of(kernel.world(), kernel.rank, index);
            let per_chunk = u64::from(kernel.op_plan.segment_rows);
            let before = u64::from(number) * per_chunk;
            let rows = kernel
                .op_plan
                .shape
                .seq
                .saturating_sub(before)
                .min(per_chunk);
            let found = (chunk.number, u64::from(chunk.rows));
            assert_eq!(found, (number, rows), "{}", kernel.plan.id);
        }
    }
}

/// A tile meets the keys of its rank first, and then once each of the other ranks' keys to which it attends.
pub fn a_tile_meets_all_its_keys_once(kernels: &[Kernel]) {
    for kernel in kernels {
        let tiles = kernel.tiles().into_iter();
        for tile in tiles.filter(|tile| (tile.batch, tile.head) == (0, 0)) {
            let met = kernel.blocks(tile);
            let distinct: BTreeSet<&Keys> = met.iter().collect();
            assert_eq!(distinct.len(), met.len(), "{tile:?} of {}", kernel.plan.id);
            assert_eq!(met[0].source, kernel.rank);
            let chunk = kernel.chunks()[tile.chunk as usize];
            let rows = chunk.rows.min(tile.row + TILE_ROWS);
            let last = chunk.number * kernel.op_plan.segment_rows + rows - 1;
            let is_needed = |keys: &Keys| {
                let chunks = kernels[keys.source as usize].chunks();
                // No mask hides cached rows.
                let Some(chunk) = chunks.get(keys.chunk as usize) else {
                    return true;
                };
                let place = chunk.number * kernel.op_plan.segment_rows + keys.row;
                !kernel.op_plan.config.causal || place <= last
            };
            let needed: BTreeSet<Keys> = all_keys(kernels).into_iter().filter(is_needed).collect();
            assert!(
                distinct.into_iter().eq(&needed),
                "{tile:?} of {}",
                kernel.plan.id
            );
        }
    }
}

/// Returns the tiles of keys of all ranks.
fn all_keys(kernels: &[Kernel]) -> Vec<Keys> {
    let of_chunk = |kernel: &Kernel, chunk: u32| {
        let (source, rows) = (kernel.rank, kernel.key_chunks()[chunk as usize].rows);
        let rows = (0..rows).step_by(TILE_ROWS as usize);
        rows.map(move |row| Keys { source, chunk, row })
            .collect::<Vec<_>>()
    };
    let of_rank = |kernel| {
        (0..Kernel::key_chunks(kernel).len() as u32).flat_map(move |chunk| of_chunk(kernel, chunk))
    };
    kernels.iter().flat_map(of_rank).collect()
}

/// A rank awaits exactly the keys that are sent to it. So nothing arrives after its call has ended.
pub fn sent_keys_are_awaited(kernels: &[Kernel]) {
    for kernel in kernels {
        let tiles = kernel.tiles().into_iter();
        let tiles = tiles.filter(|tile| (tile.batch, tile.head) == (0, 0));
        let mut awaited: BTreeSet<Keys> = tiles
            .flat_map(|tile| kernel.blocks(tile).to_vec())
            .collect();
        awaited.retain(|keys| keys.source != kernel.rank);
        let others = kernels.iter().filter(|other| other.rank != kernel.rank);
        let sent: BTreeSet<Keys> = others
            .flat_map(|other| other.sent_to(kernel.rank))
            .collect();
        assert_eq!(sent, awaited, "{}", kernel.plan.id);
    }
}

/// Every part of every head is sent once, head by head.
pub fn parts_are_sent_head_by_head(kernels: &[Kernel]) {
    for kernel in kernels.iter().filter(|kernel| kernel.world() > 1) {
        let parts = kernel.parts().iter();
        let order: Vec<_> = parts
            .map(|part| (part.head, part.chunk, part.row, part.index))
            .collect();
        let op_plan = &kernel.op_plan;
        let tiles = Kernel::key_tiles(kernels);
        let all = op_plan.kv_heads() as u32 * tiles * op_plan.block_parts();
        assert_eq!(order.len(), all as usize);
        assert!(
            order.windows(2).all(|pair| pair[0] < pair[1]),
            "{}",
            kernel.plan.id
        );
    }
}

/// The number of readers of a source's slot is the number of tiles that meet its keys.
pub fn readers_are_the_tiles_that_meet_keys(kernels: &[Kernel]) {
    for kernel in kernels.iter().filter(|kernel| kernel.world() > 1) {
        let tiles = kernel.tiles();
        let of_first: Vec<_> = tiles
            .iter()
            .filter(|tile| kernel.kv_head(**tile) == 0)
            .collect();
        for source in (0..kernel.world() as usize).filter(|source| *source != kernel.rank as usize)
        {
            let meets = |tile: &&&Tile| kernel.sources(***tile).contains(&source);
            // Ranks without rows send nothing, so the number of their readers does not matter.
            if kernels[source].sent_to(kernel.rank).is_empty() {
                continue;
            }
            assert_eq!(
                of_first.iter().filter(meets).count(),
                kernel.readers(source),
                "{}",
                kernel.plan.id
            );
        }
    }
}

/// A rank puts to its peer on another node exactly the tiles that ranks of that node await, each once. The forwarding rank
/// awaits the put that contains the tile.
pub fn awaited_tiles_are_put_once(kernels: &[Kernel]) {
    let plan = &kernels[0].plan;
    let Some(network) = &plan.body().network else {
        return;
    };
    let topology = plan.spec.topology();
    let mut most = 0;
    for kernel in kernels {
        let op_plan = &kernel.op_plan;
        let segments = op_plan.config.placement.segments();
        let cached = (Kernel::key_tiles(kernels) - op_plan.row_tiles).div_ceil(op_plan.put_tiles);
        let of_head = segments * op_plan.segment_puts() + cached;
        let puts = op_plan.kv_heads() as u32 * of_head;
        assert_eq!(kernel.puts().len(), puts as usize);
        // The first put of a call may be the word with its rows.
        let of_plan = puts + u32::from(op_plan.takes_rows());
        let has_fewer = of_plan < network.puts && op_plan.config.cached.is_some();
        assert!(of_plan == network.puts || !kernel.has_most_rows || has_fewer);
        let put_of: BTreeMap<_, _> = kernel
            .parts()
            .iter()
            .map(|part| ((part.head, part.chunk, part.row), part.put))
            .collect();
        let mut rows = 0;
        for node in (0..topology.nodes).filter(|node| *node != topology.node_of(kernel.rank)) {
            let mut sent = BTreeSet::new();
            for (index, put) in (0..).zip(kernel.puts()) {
                let tiles = kernel.put_to(node, put);
                let bytes = tiles.len() as u64 * 2 * u64::from(kernel.op_plan.tile_bytes());
                assert!(bytes <= network.put_bytes);
                for keys in tiles {
                    assert_eq!(put_of[&(put.head, keys.chunk, keys.row)], index);
                    assert!(sent.insert((put.head, keys)), "{keys:?} twice");
                    let left = kernel.key_chunks()[keys.chunk as usize].rows - keys.row;
                    rows += u64::from(TILE_ROWS.min(left));
                }
            }
            let readers = topology.first_of(node)..topology.first_of(node + 1);
            let awaited: BTreeSet<Keys> =
                readers.flat_map(|reader| kernel.sent_to(reader)).collect();
            let heads = 0..kernel.op_plan.kv_heads() as u32;
            let awaited = heads.flat_map(|head| awaited.iter().map(move |keys| (head, *keys)));
            assert_eq!(sent, awaited.collect(), "{}", plan.id);
        }
        most = most.max(rows);
    }
    let row_bytes = 2 * kernels[0].op_plan.shape.head_dim * 2;
    if kernels[0].has_most_rows && kernels[0].op_plan.config.cached.is_none() {
        assert_eq!(plan.body().traffic.nic_bytes, most * row_bytes);
    }
}
