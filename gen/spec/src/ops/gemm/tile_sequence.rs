//! The tiles of a rank in the order in which its CTAs take them: the order of `mk/gemm/tile_scheduler.cuh`, `gathered_a.cuh` and
//! `owner_rounds.cuh` for a call with the most rows. A property compares both (`tests/properties/tile_sequence.rs`).

use super::config::GemmOp;
use super::op_plan::{GemmPlan, Reduction};
use crate::topology::Topology;
use std::ops::Range;

/// A tile of the result, in units of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedTile {
    /// The row of tiles within the C of one rank.
    pub row: u32,
    /// The column of tiles.
    pub col: u32,
    /// The rank that adds up the partial sums of all ranks; 0 if tiles have no owners.
    pub owner: u32,
}

/// Rows of a shard that arrive under one flag for each slice of K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardChunk {
    /// The rank that sends the rows.
    pub source: u32,
    /// The index of the chunk in the shard.
    pub chunk: u32,
}

impl GemmPlan {
    /// The tiles of `rank`, in the order in which CTAs take them. CTA `i` of the CTAs that compute takes entry `i`, then the entry
    /// that is as many entries later as there are such CTAs, and so on. CTAs that share tiles of the last round share entries.
    #[must_use]
    pub fn tile_sequence(&self, rank: u32, topology: Topology) -> Vec<PlacedTile> {
        let sequence = Sequence {
            plan: self,
            rank,
            topology,
        };
        match &self.reduction {
            Some(reduction) if reduction.shots == 2 => {
                let slots = 0..self.order.slots;
                let tile = |slot| sequence.tile_of_owners(reduction, slot);
                slots.filter_map(tile).collect()
            }
            _ => sequence.tiles_of_shards().collect(),
        }
    }

    /// The rows of A, over all ranks, that a tile multiplies.
    #[must_use]
    pub fn rows_of_tile(&self, tile: PlacedTile, topology: Topology) -> Range<u64> {
        let before = match (self.config.op, &self.reduction) {
            (GemmOp::GemmRs, Some(reduction)) if reduction.shots == 2 => {
                u64::from(tile.owner) * self.shape.shard_rows(topology.world())
            }
            _ => 0,
        };
        let first = before + u64::from(tile.row * self.tile.m);
        first..(first + u64::from(self.tile.m)).min(self.shape.m)
    }

    /// The chunks of shards of A in which rows lie; none if shards do not travel.
    #[must_use]
    pub fn chunks_of_rows(&self, rows: Range<u64>, topology: Topology) -> Vec<ShardChunk> {
        let Some(chunks) = &self.chunks else {
            return Vec::new();
        };
        let shard_rows = self.shape.shard_rows(topology.world());
        let mut found = Vec::new();
        let mut row = rows.start;
        while row < rows.end {
            let (source, chunk) = (row / shard_rows, row % shard_rows / u64::from(chunks.rows));
            found.push(ShardChunk {
                source: source as u32,
                chunk: chunk as u32,
            });
            row = source * shard_rows + ((chunk + 1) * u64::from(chunks.rows)).min(shard_rows);
        }
        found
    }
}

/// The order of tiles of one rank.
#[derive(Clone, Copy)]
struct Sequence<'a> {
    plan: &'a GemmPlan,
    rank: u32,
    topology: Topology,
}

impl Sequence<'_> {
    /// The place at an index of a raster of `row_tiles` rows of tiles, of which groups advance along N together.
    fn raster(self, index: u32, row_tiles: u32) -> (u32, u32) {
        let order = &self.plan.order;
        let per_group = order.group_m * order.col_tiles;
        let first_row = index / per_group * order.group_m;
        let rows = order.group_m.min(row_tiles - first_row);
        let within = index % per_group;
        (first_row + within % rows, within / rows)
    }

    /// A raster over C, whose rows of tiles begin with the own shard if shards of A travel.
    fn tiles_of_shards(self) -> impl Iterator<Item = PlacedTile> {
        let order = &self.plan.order;
        let rows = match self.plan.chunks {
            None => (0..order.row_tiles).collect(),
            Some(_) if self.plan.config.m.is_given_at_run_time() => self.row_tiles_of_call(),
            Some(_) => self.row_tiles_of_shards(),
        };
        (0..order.tiles()).map(move |index| {
            let (row, col) = self.raster(index, self.plan.order.row_tiles);
            PlacedTile {
                row: rows[row as usize],
                col,
                owner: 0,
            }
        })
    }

    /// The rows of tiles if each call has the same number of rows: the own shard, then tiles of the other ranks of this node in
    /// turn, then tiles of ranks of other nodes in turn.
    fn row_tiles_of_shards(self) -> Vec<u32> {
        let (Self { rank, topology, .. }, order) = (self, &self.plan.order);
        let Some(of_shard) = order.shard_row_tiles else {
            let first = u64::from(rank) * self.plan.shape.shard_rows(topology.world());
            let first = (first / u64::from(self.plan.tile.m)) as u32;
            let all = 0..order.row_tiles;
            return all.map(|row| (row + first) % order.row_tiles).collect();
        };
        let (node, local) = (topology.node_of(rank), topology.local_of(rank));
        let near = (1..topology.local_world)
            .map(|i| topology.first_of(node) + (local + i) % topology.local_world);
        let far = (0..topology.remote()).map(|turn| {
            let node = (node + 1 + turn / topology.local_world) % topology.nodes;
            topology.first_of(node) + (local + turn) % topology.local_world
        });
        let (near, far): (Vec<_>, Vec<_>) = (near.collect(), far.collect());
        let in_turn = |ranks: Vec<u32>| {
            let rows = (0..of_shard).flat_map(move |row| {
                let ranks = ranks.clone().into_iter();
                ranks.map(move |rank| rank * of_shard + row)
            });
            rows.collect::<Vec<_>>()
        };
        [in_turn(vec![rank]), in_turn(near), in_turn(far)].concat()
    }

    /// The rows of tiles if each call gives the rows, of which the last ranks may have fewer than the others: the own tiles, then
    /// rounds with a tile of every rank with a full shard, and at the end the tiles that are left, rank by rank.
    fn row_tiles_of_call(self) -> Vec<u32> {
        let (Self { rank, topology, .. }, rows) = (self, self.plan.shape.m);
        let (world, tile_rows) = (topology.world(), u64::from(self.plan.tile.m));
        let shard_rows = self.plan.shape.shard_rows(world);
        let first_tile = |rank: u32| {
            let first_row = (u64::from(rank) * shard_rows).min(rows);
            first_row.div_ceil(tile_rows) as u32
        };
        let full = (rows / shard_rows).min(world.into()) as u32;
        let rounds = (shard_rows / tile_rows) as u32;
        let node = topology.first_of(topology.node_of(rank)).min(full);
        let node_end = (node + topology.local_world).min(full);
        // A rank with a full shard begins behind itself, and any other rank with the first rank of its node.
        let (begin, count) = match rank < full {
            true => (rank + 1 - node, node_end - node - 1),
            false => (0, node_end - node),
        };
        let near = (0..count).map(|i| node + (begin + i) % (node_end - node));
        let near: Vec<_> = near.collect();
        let far = (0..full - (node_end - node)).map(|i| (node_end + i) % full);
        let in_turn = |ranks: &[u32]| {
            let rows = (0..rounds).flat_map(|round| ranks.iter().map(move |rank| (*rank, round)));
            let rows = rows.map(|(rank, round)| first_tile(rank) + round);
            rows.collect::<Vec<_>>()
        };
        let own: Vec<_> = (first_tile(rank)..first_tile(rank + 1)).collect();
        let left = (1..world).flat_map(|i| {
            let other = (rank + i) % world;
            let done = if other < full { rounds } else { 0 };
            first_tile(other) + done..first_tile(other + 1)
        });
        let (near, far) = (in_turn(&near), in_turn(&far.collect::<Vec<_>>()));
        [own, near, far, left.collect()].concat()
    }

    /// The tile in a slot of the rounds of owners; `None` if the slot is empty.
    fn tile_of_owners(self, reduction: &Reduction, slot: u32) -> Option<PlacedTile> {
        let &Reduction {
            owners,
            owner_tiles,
            round_tiles,
            ..
        } = reduction;
        let own = self.topology.local_of(self.rank);
        let is_idle = own >= owners;
        let first_owner = if is_idle { own } else { own + 1 };
        let (owner, index) = if round_tiles >= owner_tiles {
            (
                (first_owner + slot / owner_tiles) % owners,
                slot % owner_tiles,
            )
        } else if is_idle {
            let first = slot / (owners * round_tiles) * round_tiles;
            let tiles = round_tiles.min(owner_tiles - first);
            let within = slot % (owners * round_tiles);
            ((own + within / tiles) % owners, first + within % tiles)
        } else {
            in_rounds(reduction, own, slot)
        };
        self.tile_of(reduction, owner, index)
    }

    /// Tile `index` among the tiles that local rank `owner` adds up.
    fn tile_of(self, reduction: &Reduction, owner: u32, index: u32) -> Option<PlacedTile> {
        let (Self { rank, topology, .. }, order) = (self, &self.plan.order);
        let shard_tiles = reduction.shard_tiles;
        let turn = topology.node_of(rank) + 1 + index / shard_tiles;
        let (node, in_shard) = match topology.nodes {
            1 => (0, index),
            nodes => (turn % nodes, index % shard_tiles),
        };
        let owner_rank = topology.first_of(node) + owner;
        let (row, col) = match (self.plan.config.op, order.shard_row_tiles) {
            (GemmOp::GemmRs, Some(row_tiles)) => self.raster(in_shard, row_tiles),
            _ => {
                let slot = match topology.nodes {
                    1 => slot_in_rounds(reduction, owner, index),
                    _ => owner_rank * shard_tiles + in_shard,
                };
                if slot >= order.tiles() {
                    return None;
                }
                self.raster(slot, order.row_tiles)
            }
        };
        Some(PlacedTile {
            row,
            col,
            owner: owner_rank,
        })
    }
}

/// The owner, and the index among its tiles, of the tile in a slot: in each round tiles of the other owners, then own tiles of the
/// round before.
fn in_rounds(reduction: &Reduction, own: u32, slot: u32) -> (u32, u32) {
    let &Reduction {
        owners,
        owner_tiles,
        round_tiles,
        ..
    } = reduction;
    let peers = owners - 1;
    if slot < peers * round_tiles {
        return ((own + 1 + slot / round_tiles) % owners, slot % round_tiles);
    }
    let rounds = owner_tiles.div_ceil(round_tiles);
    if slot >= peers * owner_tiles + (rounds - 2) * round_tiles {
        return (own, slot - peers * owner_tiles);
    }
    let later = slot - peers * round_tiles;
    let first = (1 + later / (owners * round_tiles)) * round_tiles;
    let tiles = round_tiles.min(owner_tiles - first);
    let within = later % (owners * round_tiles);
    match within.checked_sub(peers * tiles) {
        None => ((own + 1 + within / tiles) % owners, first + within % tiles),
        Some(of_own) => (own, first - round_tiles + of_own),
    }
}

/// The index of a tile in the raster over C. The tiles of an owner in a round are neighbours.
fn slot_in_rounds(reduction: &Reduction, owner: u32, index: u32) -> u32 {
    let (all, round) = (reduction.owner_tiles, reduction.round_tiles);
    if round >= all {
        return owner * all + index;
    }
    let first = index / round * round;
    first * reduction.owners + owner * round.min(all - first) + index - first
}
