//! The part of a plan that only attention operators have.

use super::config::{AttentionConfig, AttentionShape};
use crate::arch::{Arch, ArchSpec};
use crate::config::{Dtype, LINE_BYTES};
use crate::device::Device;
use crate::topology::Topology;
use serde::Serialize;

/// Rows of queries that a CTA computes at a time, and rows of keys in a stage.
pub const TILE_ROWS: u32 = 128;
/// Bytes of a sub-tile: the columns of a tile that are together in shared memory, a line of the swizzle of each row.
pub const SUB_TILE_BYTES: u32 = TILE_ROWS * LINE_BYTES;
/// The largest number of stages of K, which is also the largest number of stages of V. More than four stages gain nothing.
pub(super) const MAX_STAGES: u32 = 4;
/// Buffers for tiles of queries. One tile is loaded while the other is computed.
pub(super) const QUERY_BUFFERS: u32 = 2;
/// The part of a plan that only attention operators have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttentionPlan {
    /// The architecture of the kernel.
    #[serde(skip)]
    pub arch: Arch,
    /// The configuration of the operator.
    pub config: AttentionConfig,
    /// The sizes of the problem.
    pub shape: AttentionShape,
    /// Rows of a chunk of the sequence. For packed sequences, the largest number of rows that the chunks of all sequences may have
    /// together.
    pub segment_rows: u32,
    /// Tiles of a chunk.
    pub segment_tiles: u32,
    /// Tiles of a rank's rows of a head. On some ranks, some of these tiles are empty.
    pub row_tiles: u32,
    /// Tiles of queries over all heads.
    pub tiles: u32,
    /// Heads whose tiles are computed together, the tiles with the most keys first.
    pub group_heads: u32,
    /// Stages of K. V has an equal number of stages.
    pub stages: u32,
    /// CTAs that send K and V before they compute; 0 in a world of 1. Across nodes, some warps of each of these CTAs send and
    /// forward while the other warps compute.
    pub push_ctas: u32,
    /// Warps of each of these CTAs that send and forward.
    pub push_warps: u32,
    /// Heads of K and V, over all batches, for which a rank has room for each source.
    pub kv_slots: u32,
    /// Buffers for all slots. Across nodes there are two buffers, which calls use in turn; on one node there is one.
    pub buffers: u32,
    /// Across nodes: tiles of a put, of one segment of a head; 0 on one node.
    pub put_tiles: u32,
}

impl AttentionPlan {
    /// Whether each call gives the length of the sequence or of the packed sequences.
    #[must_use]
    pub const fn takes_rows(&self) -> bool {
        self.config.packed || self.config.seq.is_given_at_run_time()
    }

    /// The most cached rows of a sequence on a rank.
    #[must_use]
    pub const fn cached_rows(&self) -> u64 {
        match self.config.cached {
            Some(rows) => rows as u64,
            None => 0,
        }
    }

    /// The most tiles of a rank's rows of a head of K, cached rows included.
    #[must_use]
    pub const fn key_tiles(&self) -> u32 {
        self.row_tiles + self.cached_rows().div_ceil(TILE_ROWS as u64) as u32
    }

    /// Batches of the operands. Packed sequences share one batch.
    #[must_use]
    pub const fn batches(&self) -> u64 {
        match self.config.packed {
            true => 1,
            false => self.shape.batch,
        }
    }

    /// Heads of Q, over all batches.
    #[must_use]
    pub const fn heads(&self) -> u64 {
        self.batches() * self.shape.heads
    }

    /// Whether some tiles of keys have fewer rows than others.
    #[must_use]
    pub fn is_ragged(&self) -> bool {
        let tile = u64::from(TILE_ROWS);
        !u64::from(self.segment_rows).is_multiple_of(tile) || !self.shape.seq.is_multiple_of(tile)
    }

    /// Whether the chunk's last tile may contain other rows of this rank behind the chunk.
    #[must_use]
    pub fn has_rows_behind(&self) -> bool {
        let has_tail = !self.segment_rows.is_multiple_of(TILE_ROWS);
        self.takes_rows() || (self.config.placement.segments() > 1 && has_tail)
    }

    /// Whether the sequence ends before the last chunk does.
    #[must_use]
    pub fn is_uneven(&self, world: u32) -> bool {
        let chunks = u64::from(world * self.config.placement.segments());
        self.shape.seq != chunks * u64::from(self.segment_rows)
    }

    /// Heads of K and V, over all batches.
    #[must_use]
    pub const fn kv_heads(&self) -> u64 {
        self.batches() * self.shape.kv_heads
    }

    /// Whether heads of K and V take turns in the slots.
    #[must_use]
    pub const fn is_ring(&self) -> bool {
        (self.kv_slots as u64) < self.kv_heads()
    }

    /// Tiles of K and V in all slots of a rank.
    #[must_use]
    pub fn slot_tiles(&self, world: u32) -> u64 {
        u64::from(world) * u64::from(self.kv_slots) * u64::from(self.key_tiles())
    }

    /// Bytes of all slots of a rank.
    #[must_use]
    pub fn slot_bytes(&self, world: u32) -> u64 {
        self.slot_tiles(world) * 2 * u64::from(self.tile_bytes() * self.buffers)
    }

    /// Puts of a chunk of a head to another node.
    #[must_use]
    pub const fn segment_puts(&self) -> u32 {
        match self.put_tiles {
            0 => 0,
            tiles => self.segment_tiles.div_ceil(tiles),
        }
    }

    /// The most puts of a head to another node: the puts of its chunks and of the most cached rows.
    #[must_use]
    pub fn head_puts(&self) -> u32 {
        let cached = (self.key_tiles() - self.row_tiles).div_ceil(self.put_tiles.max(1));
        self.config.placement.segments() * self.segment_puts() + cached
    }

    /// Parts of a block of K and V: their sub-tiles.
    #[must_use]
    pub const fn block_parts(&self) -> u32 {
        2 * self.shape.head_dim as u32 / self.config.dtype.per_line()
    }

    /// The plan with the same design for calls of `seq` rows.
    pub(super) fn of_rows(&self, seq: u64, world: u32) -> Self {
        let shape = AttentionShape { seq, ..self.shape };
        let tiles = Tiles::new(&self.config, shape, world);
        Self {
            shape,
            segment_rows: tiles.segment_rows as u32,
            segment_tiles: tiles.of_segment as u32,
            row_tiles: tiles.of_head as u32,
            tiles: tiles.all as u32,
            ..self.clone()
        }
    }

    /// Bytes of a tile of K, or of V, or of queries.
    #[must_use]
    pub const fn tile_bytes(&self) -> u32 {
        tile_bytes(self.config.dtype, self.shape)
    }
}

/// The tiles of queries of a rank.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    /// Rows of a chunk of the sequence, or the largest number of rows of a chunk of each packed sequence.
    pub segment_rows: u64,
    /// Tiles of a chunk.
    pub of_segment: u64,
    /// Tiles of a head.
    pub of_head: u64,
    /// Heads, over all batches. Packed sequences share one batch.
    pub heads: u64,
    /// Tiles of all heads.
    pub all: u64,
}

impl Tiles {
    pub fn new(config: &AttentionConfig, shape: AttentionShape, world: u32) -> Self {
        let (placement, tile) = (config.placement, u64::from(TILE_ROWS));
        let (segment_rows, of_segment) = if config.packed {
            let most = |rows| shape.packed_chunk_parts(world, placement, rows);
            (most(1), most(tile))
        } else {
            let rows = shape.chunk_rows(world, placement);
            (rows, rows.div_ceil(tile))
        };
        let of_head = of_segment * u64::from(placement.segments());
        let heads = match config.packed {
            true => shape.heads,
            false => shape.batch * shape.heads,
        };
        Self {
            segment_rows,
            of_segment,
            of_head,
            heads,
            all: heads * of_head,
        }
    }
}

pub(super) const fn tile_bytes(dtype: Dtype, shape: AttentionShape) -> u32 {
    TILE_ROWS * (shape.head_dim * dtype.bytes()) as u32
}

/// Warps of a CTA that push. If the CTA pushes before it computes, parts lie in the memory of later queries and stages.
pub(super) fn push_warps(arch: &ArchSpec, tile_bytes: u32, stages: u32, topology: Topology) -> u32 {
    match (topology.world(), topology.nodes) {
        (1, _) => 0,
        (_, 1) => {
            let parts = (QUERY_BUFFERS + 2 * stages) * tile_bytes / SUB_TILE_BYTES;
            parts.min(arch.warps())
        }
        _ => 1,
    }
}

/// CTAs of the kernel.
pub(super) fn grid_ctas(op_plan: &AttentionPlan, world: u32, device: &Device) -> u32 {
    let pushing = match op_plan.put_tiles {
        0 if world > 1 => op_plan.push_ctas,
        _ => 0,
    };
    device.sm_count.min(pushing + op_plan.tiles)
}
