//! The part of a plan that only GEMM operators have.

use super::config::{Epilogue, GemmConfig, GemmShape, Transfer, Tuning};
use super::types::GemmTypes;
use crate::arch::{ArchSpec, Tile};
use crate::config::{Dtype, LINE_BYTES};
use serde::Serialize;

/// Rows of a sub-tile, the unit of output.
pub(crate) const OUT_ROWS: u32 = 64;
/// Columns of a sub-tile.
pub(crate) const OUT_COLS: u32 = 64;
/// Bytes of an output buffer: a line of each row of a sub-tile.
pub(crate) const OUT_BYTES: u32 = OUT_ROWS * LINE_BYTES;
/// Output buffers of a consumer warpgroup: one is stored while the next is filled.
pub(crate) const OUT_BUFFERS: u32 = 2;
/// Bytes that each warp of a communication CTA copies through shared memory at a time.
pub const SLOT_BYTES: u32 = 16 << 10;

/// How a GEMM operator computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GemmPlan {
    /// The problem of the plan's spec.
    #[serde(skip)]
    pub config: GemmConfig,
    /// The sizes of the problem.
    pub shape: GemmShape,
    /// Rows and columns that a CTA computes at a time.
    pub tile: Tile,
    /// How two consumer warpgroups share a tile.
    pub split: Split,
    /// Stages of the pipeline in shared memory.
    pub stages: u32,
    /// The CTAs that share each tile as a cluster. `None` if the kernel has no clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// Rows of A in a stage: fewer than the rows of the tile if C has fewer.
    pub stage_rows_a: u32,
    /// Rows of A of one load: fewer than the rows of the tile if C has fewer.
    pub load_rows_a: u32,
    /// The engine that moves rows of A to the peers. `None` in a world of 1, and for operators that reduce.
    pub transfer: Option<Transfer>,
    /// The number of CTAs that only communicate. These CTAs are the first of the launch.
    pub comm_ctas: u32,
    /// The order of tiles.
    pub order: TileOrder,
    /// How a shard travels. `None` in a world of 1, and for operators that reduce.
    pub chunks: Option<Chunks>,
    /// How partial sums meet. `None` in a world of 1, and for operators that do not reduce.
    pub reduction: Option<Reduction>,
}

impl GemmPlan {
    /// The types of elements.
    #[must_use]
    pub const fn types(&self) -> GemmTypes {
        self.config.types()
    }

    /// Whether rows are normalised when all of their tiles have been counted.
    pub(crate) fn normalises_tiles(&self) -> bool {
        let reduction = self.reduction.as_ref();
        reduction.is_some_and(|r| r.normalises_tiles(&self.config.epilogue))
    }

    /// The configuration that fixes this design, for any number of rows: tile, shared tiles, and the way between ranks.
    pub(crate) fn design(&self) -> GemmConfig {
        let across_nodes = self.reduction.as_ref().is_some_and(|r| r.put_tiles > 0);
        let communicates = self.chunks.is_some() || across_nodes;
        let tuning = Tuning {
            tile_m: Some(self.tile.m),
            tile_n: Some(self.tile.n),
            split_k: Some(self.order.tail_splits),
            shots: self.reduction.as_ref().map(|r| r.shots),
            comm_ctas: communicates.then_some(self.comm_ctas),
            k_slices: self.chunks.as_ref().map(|c| c.k_slices),
            ..self.config.tuning
        };
        GemmConfig {
            tuning,
            ..self.config
        }
    }
}

/// The CTAs that share a tile as a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cluster {
    /// The number of CTAs.
    pub ctas: u32,
    /// Warps of a warpgroup that have rows of C.
    pub row_warps: u32,
    /// The most blocks of a warpgroup's sums that one CTA completes.
    #[serde(skip)]
    pub(super) blocks: u32,
}

impl Cluster {
    /// Columns of a warpgroup that a CTA completes at a time. A thread has four sums of these columns.
    const BLOCK_COLS: u32 = 8;
    /// Bytes of a warp's sums of a block: 16 of each lane.
    pub(super) const SUMS_BYTES: u64 = 16 * 32;

    /// Creates a cluster for a kernel in which `weight_cols` columns of B make one column of C.
    pub(super) fn new(arch: &ArchSpec, tile: Tile, rows: u64, ctas: u32, weight_cols: u32) -> Self {
        let cols = Split::of(tile).group_cols(tile) / weight_cols;
        let rows = rows.min(u64::from(arch.group_rows).min(tile.m.into()));
        Self {
            ctas,
            row_warps: rows.div_ceil(16) as u32,
            blocks: (cols / Self::BLOCK_COLS).div_ceil(ctas) * weight_cols,
        }
    }

    /// Bytes of shared memory that the exchange takes.
    pub(super) fn smem_bytes(self, groups: u32) -> u32 {
        let warps = groups * self.row_warps;
        let sums = (self.ctas - 1) * self.blocks * warps * Self::SUMS_BYTES as u32;
        sums + 8 * (warps + 1)
    }
}

/// How a shard travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chunks {
    /// Rows that arrive under one flag (per slice of K).
    pub rows: u32,
    /// Chunks of a full shard.
    pub per_shard: u32,
    /// Slices of K that arrive under flags of their own.
    pub k_slices: u32,
    /// Columns of a slice of K. The last slice may have fewer.
    pub slice_cols: u32,
    /// `sm_push`: rows that one warp stores at a time; a flag counts such pieces.
    pub piece_rows: u32,
    /// The increase of a flag in one epoch.
    pub arrivals: u32,
    /// Chunks whose slices are sent in turn, before the next chunks.
    pub panel_chunks: u32,
    /// `sm_push`: warps per pushing CTA; more than one in a compute CTA push before they multiply.
    pub push_warps: u32,
    /// 16-byte loads in flight per thread if compute CTAs push; 0 otherwise.
    pub push_unroll: u32,
    /// Whether a rank sends its rows to itself too, since tiles straddle shards.
    pub to_self: bool,
}

impl Chunks {
    /// Rounds of loads and stores, one after the other, in which a warp pushes rows of type `a` if `ctas` compute CTAs push.
    pub(crate) fn push_rounds(&self, a: Dtype, ctas: u32) -> u32 {
        let pieces = self.per_shard * self.k_slices * self.arrivals;
        let slice_bytes = self.slice_cols * a.bytes() as u32;
        let row_rounds = slice_bytes.div_ceil(32 * 16 * self.push_unroll.max(1));
        pieces.div_ceil(ctas * self.push_warps.max(1)) * self.piece_rows * row_rounds
    }
}

impl Reduction {
    /// Whether rows are normalised when all of their tiles have been counted: in two shots.
    pub(crate) fn normalises_tiles(&self, epilogue: &Epilogue) -> bool {
        self.shots == 2 && epilogue.normalises()
    }
}

/// How partial sums of the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reduction {
    /// 1: every rank sends its partial sums of every tile to all ranks, and each rank adds up all tiles. 2: each tile has an owner,
    /// which adds up the tile.
    pub shots: u32,
    /// The number of ranks that own tiles, which are the first ranks. Across nodes, the ranks of a node that add up the node's
    /// partial sums, which are all ranks of the node.
    pub owners: u32,
    /// Tiles that each owner adds up; with one shot, all tiles. Across nodes, this includes tiles of the ranks with the owner's
    /// local rank on the other nodes.
    pub owner_tiles: u32,
    /// Tiles that each rank owns: `owner_tiles` without the tiles that the rank adds up for other nodes.
    pub shard_tiles: u32,
    /// Tiles of a put to another node; 0 on one node.
    pub put_tiles: u32,
    /// Tiles of each owner in a round. A rank computes its own tiles one round later than the tiles of other owners.
    pub round_tiles: u32,
    /// Sub-tiles of 64 columns, per consumer warpgroup, of partial sums that a stage holds.
    pub partial_subs: u32,
    /// One shot: packets of each source that a thread loads at a time; 0 with two shots.
    pub packets_in_flight: u32,
    /// Whether the rank that adds up a tile, or a row with one shot, sends the result to all peers.
    pub results: bool,
    /// Whether results of tiles go straight to C of all ranks, which lies in symmetric memory.
    pub on_peers: bool,
    /// 16-byte loads in flight of a thread that takes results of tiles from slots to C; 0 if no rank has slots of results.
    pub collect_unroll: u32,
}

/// The order in which tiles are computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TileOrder {
    /// Tiles along M.
    pub row_tiles: u32,
    /// Tiles along N.
    pub col_tiles: u32,
    /// Row tiles that advance together along N.
    pub group_m: u32,
    /// Row tiles of a full shard. `None` if tiles straddle shards.
    pub shard_row_tiles: Option<u32>,
    /// Slots in the order, one per tile. Some slots are empty if owners have unequal numbers of tiles.
    pub slots: u32,
    /// Tiles that one CTA computes alone, in whole rounds over the compute CTAs. The other tiles are the last round.
    pub whole_tiles: u32,
    /// CTAs that share a tile of the last round, each with a slice of K; 1 if tiles are not shared.
    pub tail_splits: u32,
    /// Stages of whole tiles after which all compute CTAs wait for each other; 0 if the CTAs never wait.
    pub pace_steps: u32,
}

impl TileOrder {
    /// Tiles of the result.
    #[must_use]
    pub const fn tiles(&self) -> u32 {
        self.row_tiles * self.col_tiles
    }

    /// Whether some of `ctas` CTAs have a tile in the last round, and begin with rows of other ranks.
    #[must_use]
    pub(crate) fn begins_late(&self, ctas: u32) -> bool {
        let own = self.shard_row_tiles.filter(|own| self.group_m <= *own);
        let first_late = own.unwrap_or(0) * self.col_tiles;
        let last_round = match self.work_tiles() % ctas {
            0 => ctas,
            work_tiles => work_tiles,
        };
        first_late < last_round
    }

    /// Tiles of the last round.
    #[must_use]
    pub const fn tail_tiles(&self) -> u32 {
        self.slots - self.whole_tiles
    }

    /// Sub-tiles that a CTA completes if CTAs share the `subs` sub-tiles of a warpgroup in a tile of the last round, of which a CTA
    /// completes `together` at a time. Some CTAs may complete no sub-tile.
    #[must_use]
    pub const fn completed_subs(&self, subs: u32, together: u32) -> u32 {
        subs.div_ceil(self.tail_splits).next_multiple_of(together)
    }

    /// Work tiles of the compute CTAs: whole tiles, then slices of K of the tiles of the last round. With one shot, each tile
    /// comes a second time, to be added up.
    #[must_use]
    pub const fn work_tiles(&self) -> u32 {
        self.whole_tiles + self.tail_tiles() * self.tail_splits
    }
}

/// How two consumer warpgroups share a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Each warpgroup has 64 of 128 rows.
    Rows,
    /// Each warpgroup has half of the columns of 64 rows.
    Cols,
}

impl Split {
    /// Columns of a tile that a consumer warpgroup multiplies.
    pub(crate) const fn group_cols(self, tile: Tile) -> u32 {
        match self {
            Self::Rows => tile.n,
            Self::Cols => tile.n / 2,
        }
    }

    /// How warpgroups share a tile with the rows of `tile`.
    pub(crate) const fn of(tile: Tile) -> Self {
        if tile.m == 128 {
            Self::Rows
        } else {
            Self::Cols
        }
    }
}
