//! The tiles of queries in the order in which CTAs take them, and the tiles of keys that a tile of queries meets: the orders of
//! `mk/attention/tile_scheduler.cuh` and `kv_iterator.cuh`. A property compares both (`tests/properties/attention`).

use super::op_plan::{AttentionPlan, TILE_ROWS};
use crate::topology::Topology;

/// A tile of queries of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryTile {
    /// The head, over all batches.
    pub head: u32,
    /// The index of the chunk among the chunks of its rank.
    pub chunk: u32,
    /// The first row within the chunk.
    pub row: u32,
}

/// A tile of keys of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTile {
    /// The rank that has the keys.
    pub source: u32,
    /// The index of the chunk among the chunks of `source`. Cached rows are one more chunk.
    pub chunk: u32,
    /// The first row within the chunk.
    pub row: u32,
}

impl AttentionPlan {
    /// The tiles of queries of a call whose sequences have the most rows, in the order in which CTAs take them. On some ranks, some
    /// tiles have no rows. Sequences must not be packed.
    #[must_use]
    pub fn tile_sequence(&self) -> Vec<QueryTile> {
        let (row_tiles, heads) = (self.row_tiles, self.heads() as u32);
        let per_group = self.group_heads * row_tiles;
        let tile = |index: u32| {
            let first = index / per_group * self.group_heads;
            let heads = self.group_heads.min(heads - first);
            let within = index % per_group;
            let row_tile = row_tiles - 1 - within / heads;
            QueryTile {
                head: first + within % heads,
                chunk: row_tile / self.segment_tiles,
                row: row_tile % self.segment_tiles * TILE_ROWS,
            }
        };
        (0..heads * row_tiles).map(tile).collect()
    }

    /// The tiles of keys that a tile of queries of `rank` meets, in the order of the sums, except for cached rows.
    #[must_use]
    pub fn key_tiles_of(&self, tile: QueryTile, rank: u32, topology: Topology) -> Vec<KeyTile> {
        let (world, placement) = (topology.world(), self.config.placement);
        let chunks = placement.segments();
        let key_chunks = chunks + u32::from(self.config.cached.is_some());
        let own = placement.chunk_of(world, rank, tile.chunk);
        let of_span = |span: u32| {
            let turn = span / key_chunks;
            let node = topology.node_of(rank) + topology.nodes - turn / topology.local_world;
            let local = topology.local_of(rank + world - turn);
            let source = topology.first_of(node % topology.nodes) + local;
            let chunk = (tile.chunk + span) % key_chunks;
            let end = match chunk < chunks {
                true => self.attended_rows(tile, (own, world), (source, chunk)),
                false => 0,
            };
            let rows = (0..end).step_by(TILE_ROWS as usize);
            rows.map(move |row| KeyTile { source, chunk, row })
        };
        (0..world * key_chunks).flat_map(of_span).collect()
    }

    /// The number of rows of a chunk of keys to which any query of a tile attends. `own` is the chunk of the queries in the sequence.
    fn attended_rows(
        &self,
        tile: QueryTile,
        (own, world): (u32, u32),
        (source, chunk): (u32, u32),
    ) -> u32 {
        let placement = self.config.placement;
        let rows = placement.rows_of(world, source, self.shape.seq);
        let rows = &rows[chunk as usize];
        let rows = (rows.end - rows.start) as u32;
        match placement.chunk_of(world, source, chunk) {
            _ if !self.config.causal => rows,
            later if later > own => 0,
            same if same == own => rows.min(tile.row + TILE_ROWS),
            _ => rows,
        }
    }
}
