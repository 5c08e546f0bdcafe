//! The index arithmetic of `templates/ops/ring_attention.cu.tera` and `templates/parts/put_keys.cu.tera` with the numbers of the
//! plan. Change both.

use mkernel_spec::plan::{AttentionPlan, Body, TILE_ROWS};
use mkernel_spec::{KernelPlan, Topology};
use std::collections::BTreeSet;

/// A tile of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tile {
    pub batch: u32,
    pub head: u32,
    pub segment: u32,
    pub row: u32,
}

/// A tile of keys of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Keys {
    pub source: u32,
    pub segment: u32,
    pub row: u32,
}

/// One rank of a rendered kernel.
pub struct Kernel<'a> {
    pub plan: &'a KernelPlan,
    pub body: &'a AttentionPlan,
    pub rank: u32,
}

impl<'a> Kernel<'a> {
    pub fn all(plan: &'a KernelPlan) -> Vec<Self> {
        let Body::Attention(body) = &plan.body else {
            panic!("attention")
        };
        let ranks = 0..plan.spec.world();
        ranks.map(|rank| Self { plan, body, rank }).collect()
    }

    pub fn world(&self) -> u32 {
        self.plan.spec.world()
    }

    pub fn segments(&self) -> u32 {
        self.body.config.placement.segments()
    }

    pub fn chunk_of(&self, rank: u32, segment: u32) -> u32 {
        self.body
            .config
            .placement
            .chunk_of(self.world(), rank, segment)
    }

    pub fn segment_rows(&self, rank: u32, segment: u32) -> u32 {
        let before = u64::from(self.chunk_of(rank, segment)) * u64::from(self.body.segment_rows);
        let left = self.body.shape.seq.saturating_sub(before);
        left.min(u64::from(self.body.segment_rows)) as u32
    }

    pub fn tile_at(&self, index: u32) -> Tile {
        let body = self.body;
        let all = (body.shape.batch * body.shape.heads) as u32;
        let heads = body.shape.heads as u32;
        let per_group = body.group_heads * body.row_tiles;
        let first = index / per_group * body.group_heads;
        let in_group = body.group_heads.min(all - first);
        let within = index % per_group;
        let head = first + within % in_group;
        let tile = body.row_tiles - 1 - within / in_group;
        Tile {
            batch: head / heads,
            head: head % heads,
            segment: tile / body.segment_tiles,
            row: tile % body.segment_tiles * TILE_ROWS,
        }
    }

    fn is_empty(&self, tile: Tile) -> bool {
        tile.row >= self.segment_rows(self.rank, tile.segment)
    }

    /// Whose keys come as the `turn`th.
    fn source(&self, turn: u32) -> u32 {
        let Topology { nodes, local_world } = self.plan.spec.topology();
        let node = (self.rank / local_world + nodes - turn / local_world) % nodes;
        node * local_world + (self.rank + local_world - turn % local_world) % local_world
    }

    /// The keys of a tile, in order.
    pub fn walk(&self, tile: Tile) -> Vec<Keys> {
        let segments = self.segments();
        let mut keys = Vec::new();
        for span in 0..segments * self.world() {
            let source = self.source(span / segments);
            let segment = (tile.segment + span) % segments;
            let own = self.chunk_of(self.rank, tile.segment);
            let theirs = self.chunk_of(source, segment);
            let end = match self.body.config.causal {
                true if theirs > own => 0,
                true if theirs == own => {
                    (tile.row + TILE_ROWS).min(self.segment_rows(self.rank, tile.segment))
                }
                _ => self.segment_rows(source, segment),
            };
            let rows = (0..end).step_by(TILE_ROWS as usize);
            keys.extend(rows.map(|row| Keys {
                source,
                segment,
                row,
            }));
        }
        keys
    }

    fn attends(&self, rank: u32, chunk: u32) -> bool {
        (0..self.segments()).any(|segment| {
            self.segment_rows(rank, segment) > 0
                && (!self.body.config.causal || self.chunk_of(rank, segment) > chunk)
        })
    }

    /// Tiles of keys of this rank that it sends to `peer`, of each head.
    pub fn sent_to(&self, peer: u32) -> BTreeSet<Keys> {
        let tile = |tile: u32| Keys {
            source: self.rank,
            segment: tile / self.body.segment_tiles,
            row: tile % self.body.segment_tiles * TILE_ROWS,
        };
        let tiles = (0..self.body.row_tiles).map(tile);
        tiles
            .filter(|keys| {
                keys.row < self.segment_rows(self.rank, keys.segment)
                    && self.attends(peer, self.chunk_of(self.rank, keys.segment))
            })
            .collect()
    }

    /// Whether a rank of the node attends to keys of the chunk.
    fn node_attends(&self, node: u32, chunk: u32) -> bool {
        let topology = self.plan.spec.topology();
        let mut ranks = topology.first_of(node)..topology.first_of(node + 1);
        ranks.any(|rank| self.attends(rank, chunk))
    }

    /// Put `index` of this rank to the node: of which head, and its tiles.
    pub fn put_to(&self, node: u32, index: u32) -> (u32, Vec<Keys>) {
        let body = self.body;
        let of_segment = body.segment_tiles.div_ceil(body.put_tiles);
        let segments = self.segments();
        let (head, segment) = (index / of_segment / segments, index / of_segment % segments);
        let first = index % of_segment * body.put_tiles * TILE_ROWS;
        let end = (first + body.put_tiles * TILE_ROWS).min(self.segment_rows(self.rank, segment));
        let tiles = (first..end).step_by(TILE_ROWS as usize).map(|row| Keys {
            source: self.rank,
            segment,
            row,
        });
        match self.node_attends(node, self.chunk_of(self.rank, segment)) {
            true => (head, tiles.collect()),
            false => (head, Vec::new()),
        }
    }

    /// The put that brings a tile of this rank's.
    pub fn put_of(&self, head: u32, keys: Keys) -> u32 {
        let body = self.body;
        let of_segment = body.segment_tiles.div_ceil(body.put_tiles);
        (head * self.segments() + keys.segment) * of_segment
            + keys.row / (body.put_tiles * TILE_ROWS)
    }

    /// Ranks whose keys a tile meets, but its own.
    pub fn sources(&self, tile: Tile) -> BTreeSet<usize> {
        let sources = self.walk(tile).into_iter().map(|keys| keys.source);
        sources
            .filter(|source| *source != self.rank)
            .map(|source| source as usize)
            .collect()
    }

    /// Tiles of a head of K and V that meet keys of `source`.
    pub fn readers(&self, source: usize) -> usize {
        let of_first = |tile: &&Tile| self.kv_head(**tile) == 0;
        let tiles = self.tiles();
        let of_first = tiles.iter().filter(of_first);
        of_first
            .filter(|tile| self.sources(**tile).contains(&source))
            .count()
    }

    pub fn kv_head(&self, tile: Tile) -> u32 {
        let shape = self.body.shape;
        tile.batch * shape.kv_heads as u32 + tile.head / (shape.heads / shape.kv_heads) as u32
    }

    pub fn tiles(&self) -> Vec<Tile> {
        let tiles = (0..self.body.tiles).map(|index| self.tile_at(index));
        tiles.filter(|tile| !self.is_empty(*tile)).collect()
    }
}
