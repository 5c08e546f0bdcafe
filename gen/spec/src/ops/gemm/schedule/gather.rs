//! The messages of `ag_gemm`, as mk/comm/push_shards.cuh sends them, and its tiles, in the order of mk/gemm/gathered_a.cuh.

use super::super::cost::{lone_tile_us, whole_tile_us};
use super::super::op_plan::{Chunks, GemmPlan};
use super::super::spec::GemmSpec;
use super::parts::Parts;
use crate::device::Device;
use crate::parts::schedule::{Action, Expect, Lane, Pace, View};
use crate::roofline::{Bound, Traffic};

const SEND: usize = 0;
const PUT: usize = 1;

/// The counters of a rank.
#[derive(Clone, Copy)]
enum Count {
    /// Pieces of a chunk, by the distances to its source and the chunk.
    Chunk,
    /// Chunks that a peer has put, by the distance of its node and the chunk.
    Landed,
}

pub(super) struct Gather {
    parts: Parts,
    chunks: Chunks,
    shard_rows: u64,
    row_bytes: u64,
    sends_in_place: bool,
    takes_rows: bool,
}

impl Gather {
    pub fn new(
        (plan, chunks): (&GemmPlan, &Chunks),
        spec: GemmSpec<'_>,
        traffic: &Traffic,
        device: &Device,
    ) -> (Self, Pace) {
        let costs = device.costs();
        let is_small = plan.tile.m * plan.tile.n < 128 * 128 && plan.order.row_tiles > 1;
        let small = if is_small {
            costs.gemm.small_tiles_slowdown
        } else {
            1.0
        };
        let slowdown = small * costs.push.comm_cta_slowdown;
        let bound = Bound::new(traffic, device);
        let transfers_us = bound.nic_us.max(bound.link_us);
        let parts = Parts {
            plan: plan.clone(),
            topology: spec.topology,
            costs,
            warps: device.arch.spec().warps(),
            // Tiles of several rounds that wait for rows do not compete for L2. Tiles of one round share the time of loading B.
            tile_us: match plan.order.whole_tiles > 0 && transfers_us > bound.compute_us {
                true => lone_tile_us(plan, spec, device),
                false => whole_tile_us(plan, spec, slowdown, traffic, device),
            },
        };
        let pace = Pace {
            start_us: costs.launch_us,
            flag_us: costs.flag_us,
            link_share: costs.store_share(bound.compute_us, bound.link_us),
            nic_share: costs.nic_share,
        };
        let gather = Self {
            parts,
            chunks: chunks.clone(),
            shard_rows: spec.shard_rows(),
            row_bytes: spec.sent_row_bytes(),
            sends_in_place: spec.sends_in_place(),
            takes_rows: spec.takes_rows(),
        };
        (gather, pace)
    }

    pub fn lanes(&self, sm_count: u32) -> Vec<Lane> {
        vec![
            Lane::new("push and relay", self.parts.senders()),
            Lane::new("put", 1),
            Lane::new("compute", sm_count - self.parts.plan.comm_ctas),
        ]
    }

    pub fn counters(&self) -> u32 {
        self.counter(Count::Landed, self.parts.topology.nodes, 0, 0)
    }

    /// Whether all ranks have rows. The last shard may be a little shorter.
    pub fn is_even(&self) -> bool {
        let others = u64::from(self.parts.topology.world() - 1);
        others * self.shard_rows < self.parts.plan.shape.m
    }

    fn counter(&self, count: Count, nodes: u32, locals: u32, chunk: u32) -> u32 {
        let (topology, chunks) = (self.parts.topology, self.chunks.per_shard);
        match count {
            Count::Chunk => (nodes * topology.local_world + locals) * chunks + chunk,
            Count::Landed => (topology.world() + nodes) * chunks + chunk,
        }
    }

    /// The bytes of `rows` rows from `first` on of a rank's shard.
    fn bytes(&self, rank: u32, first: u64, rows: u64) -> u64 {
        let before = (u64::from(rank) * self.shard_rows).min(self.parts.plan.shape.m);
        let own = self.shard_rows.min(self.parts.plan.shape.m - before);
        own.saturating_sub(first).min(rows) * self.row_bytes
    }

    fn chunk_bytes(&self, rank: u32, chunk: u32) -> u64 {
        let rows = u64::from(self.chunks.rows);
        self.bytes(rank, u64::from(chunk) * rows, rows)
    }

    fn piece_bytes(&self, rank: u32, chunk: u32, piece: u32) -> u64 {
        let first = u64::from(chunk) * u64::from(self.chunks.rows)
            + u64::from(piece * self.chunks.piece_rows);
        self.bytes(rank, first, self.chunks.piece_rows.into())
    }

    pub fn action(&self, rank: u32, lane: usize, turn: u32) -> Option<Action> {
        let view = View::of(self.parts.topology, rank);
        match lane {
            SEND => self.send(rank, view, turn),
            PUT => self.put(rank, view, turn),
            _ => self.compute(rank, turn),
        }
    }

    /// Pushes pieces of the own shard, and then forwards pieces of a chunk of each peer in turn.
    fn send(&self, rank: u32, view: View, turn: u32) -> Option<Action> {
        let (pieces, topology) = (self.chunks.arrivals, self.parts.topology);
        let own = self.chunks.per_shard * pieces;
        if turn < own {
            let (chunk, piece) = (turn / pieces, turn % pieces);
            let bytes = self.piece_bytes(rank, chunk, piece);
            let copies = topology.local_world - u32::from(self.sends_in_place);
            return Some(Action {
                work_us: self.parts.store_us(bytes * u64::from(copies)),
                messages: view.to_node(bytes, |back| self.counter(Count::Chunk, 0, back, chunk)),
                raises: Some(self.counter(Count::Chunk, 0, 0, chunk)),
                ..Action::default()
            });
        }
        let (turn, peers) = (turn - own, topology.peers());
        if turn >= own * peers {
            return None;
        }
        let ahead = view.ahead_to_peer(turn / pieces % peers);
        let (chunk, piece) = (turn / (pieces * peers), turn % pieces);
        let bytes = self.piece_bytes(view.ahead(ahead, 0), chunk, piece);
        Some(Action {
            work_us: self
                .parts
                .store_us(bytes * u64::from(topology.local_world - 1)),
            messages: view.to_node(bytes, |back| self.counter(Count::Chunk, ahead, back, chunk)),
            raises: Some(self.counter(Count::Chunk, ahead, 0, chunk)),
            ..Action::after(self.counter(Count::Landed, ahead, 0, chunk), 1)
        })
    }

    /// Puts each chunk to all peers.
    fn put(&self, rank: u32, view: View, turn: u32) -> Option<Action> {
        let peers = self.parts.topology.peers();
        let mut turn = turn;
        if self.takes_rows {
            if turn < peers {
                return Some(view.begin(1 + turn, 0));
            }
            turn -= peers;
        }
        let (chunk, ahead) = (turn / peers, 1 + turn % peers);
        if chunk >= self.chunks.per_shard {
            return None;
        }
        let bytes = self.chunk_bytes(rank, chunk);
        let messages = view.put(ahead, bytes, 0, |back| {
            self.counter(Count::Landed, back, 0, chunk)
        });
        let action = match self.sends_in_place {
            true => Action::default(),
            false => Action::after(
                self.counter(Count::Chunk, 0, 0, chunk),
                self.chunks.arrivals,
            ),
        };
        Some(Action { messages, ..action })
    }

    fn compute(&self, rank: u32, turn: u32) -> Option<Action> {
        let (tile, work_us, _) = self.parts.work(turn)?;
        let [first, last] = self.sources(rank, self.parts.raster_row(tile));
        let last = last.filter(|last| Some(*last) != first);
        Some(Action {
            expects: [first, last],
            work_us,
            ..Action::default()
        })
    }

    /// The chunks for which a row tile waits: the chunks of its first and of its last row.
    fn sources(&self, rank: u32, position: u32) -> [Option<Expect>; 2] {
        let (order, topology) = (&self.parts.plan.order, self.parts.topology);
        let tile_rows = u64::from(self.parts.plan.tile.m);
        let in_chunk = |nodes, locals, row: u64| {
            let chunk = (row / u64::from(self.chunks.rows)) as u32;
            ((nodes, locals) != (0, 0)).then(|| Expect {
                counter: self.counter(Count::Chunk, nodes, locals, chunk),
                count: self.chunks.arrivals,
            })
        };
        if let Some(shard) = order.shard_row_tiles {
            let (nodes, locals, row) =
                in_turn(position, shard, topology.local_world, topology.peers());
            let ends = [0, tile_rows - 1].map(|within| u64::from(row) * tile_rows + within);
            return ends.map(|row| in_chunk(nodes, locals, row));
        }
        let before = (u64::from(rank) * self.shard_rows / tile_rows) as u32;
        let first = u64::from((position + before) % order.row_tiles) * tile_rows;
        [first, (first + tile_rows).min(self.parts.plan.shape.m) - 1].map(|row| {
            let (source, view) = ((row / self.shard_rows) as u32, View::of(topology, rank));
            let (nodes, locals) = view.distance_to(source);
            in_chunk(nodes, locals, row % self.shard_rows)
        })
    }
}

/// The distances to the source of a row tile, and the tile in its shard, as `ShardOrder` in mk/gemm/gathered_a.cuh.
fn in_turn(position: u32, shard: u32, local_world: u32, peers: u32) -> (u32, u32, u32) {
    if position < shard {
        return (0, 0, position);
    }
    let (near, far) = (local_world - 1, peers * local_world);
    let remote = position - shard;
    if remote < near * shard {
        return (0, 1 + remote % near, remote / near);
    }
    let remote = remote - near * shard;
    let turn = remote % far;
    (1 + turn / local_world, turn % local_world, remote / far)
}
