//! The messages of `ring_attention` across nodes, as mk/attention/kv_forward.cuh sends them, and its tiles of queries.

use super::op_plan::{AttentionPlan, SUB_TILE_BYTES, TILE_ROWS};
use super::push::PUSH_LEAD;
use crate::cost::CostTable;
use crate::device::Device;
use crate::parts::schedule::{Action, Lane, Message, Pace, Schedule, Symmetry, View};
use crate::roofline::{Bound, Traffic};
use crate::topology::Topology;

const PUSH: usize = 0;
const PUT: usize = 1;

/// The counters of a rank.
#[derive(Clone, Copy)]
enum Count {
    /// Own parts in the slots from which a put takes them, by put.
    Own,
    /// Puts of a peer, by the distance of its node and the put.
    Landed,
    /// Parts of other ranks, by head.
    Head,
}

/// The messages of an attention operator.
pub(crate) struct AttentionSchedule {
    plan: AttentionPlan,
    topology: Topology,
    pace: Pace,
    costs: &'static CostTable,
    lanes: Vec<Lane>,
    /// The time of a tile of queries that attends to all keys, µs.
    tile_us: f64,
    /// By rank and chunk, the parts of a head to which the queries of the chunk attend, without own parts.
    expected_parts: Vec<Vec<u32>>,
}

/// A part of K or V of a rank: its number among the parts of the rank.
#[derive(Clone, Copy)]
struct Part {
    head: u32,
    rank_chunk: u32,
    tile: u32,
}

impl AttentionSchedule {
    pub fn new(
        plan: &AttentionPlan,
        (topology, traffic): (Topology, &Traffic),
        ctas: u32,
        device: &Device,
    ) -> Self {
        let (costs, bound) = (device.costs(), Bound::new(traffic, device));
        let compute_us = bound.compute_us / costs.attention.mma_share;
        let mut schedule = Self {
            plan: plan.clone(),
            topology,
            pace: Pace {
                start_us: costs.launch_us,
                flag_us: costs.flag_us,
                link_share: costs.store_share(compute_us, bound.link_us),
                nic_share: costs.nic_share,
            },
            costs,
            lanes: vec![
                Lane::new("push and relay", plan.push_ctas),
                Lane::new("put", 1),
                Lane {
                    is_shared: true,
                    ..Lane::new("compute", ctas)
                },
            ],
            tile_us: 0.0,
            expected_parts: Vec::new(),
        };
        let keys: f64 = (0..plan.row_tiles).map(|tile| schedule.keys(0, tile)).sum();
        schedule.tile_us = compute_us * f64::from(device.sm_count) / (keys * plan.heads() as f64);
        let ranks = match schedule.symmetry() {
            Symmetry::Even => 1,
            Symmetry::Uneven => topology.world(),
        };
        schedule.expected_parts = (0..ranks)
            .map(|rank| {
                (0..plan.config.placement.segments())
                    .map(|chunk| schedule.expected(rank, chunk))
                    .collect()
            })
            .collect();
        schedule
    }

    /// The part of all keys to which a row tile of a rank attends.
    fn keys(&self, rank: u32, row_tile: u32) -> f64 {
        if !self.plan.config.causal {
            return 1.0;
        }
        let (chunk, tile) = (
            row_tile / self.plan.segment_tiles,
            row_tile % self.plan.segment_tiles,
        );
        let before = self.chunk_of(rank, chunk) * self.plan.segment_rows;
        let rows = u64::from(before + (tile + 1) * TILE_ROWS);
        rows.min(self.plan.shape.seq) as f64 / self.plan.shape.seq as f64
    }

    /// The index in the sequence of a chunk of a rank. Cached rows come before all chunks.
    fn chunk_of(&self, rank: u32, rank_chunk: u32) -> u32 {
        let placement = self.plan.config.placement;
        match rank_chunk < placement.segments() {
            true => placement.chunk_of(self.topology.world(), rank, rank_chunk),
            false => 0,
        }
    }

    /// The tiles of a chunk of a rank that have rows.
    fn tiles(&self, rank: u32, rank_chunk: u32) -> u32 {
        if rank_chunk >= self.plan.config.placement.segments() {
            return self.plan.key_tiles() - self.plan.row_tiles;
        }
        let rows = u64::from(self.plan.segment_rows);
        let first = u64::from(self.chunk_of(rank, rank_chunk)) * rows;
        let rows = rows.min(self.plan.shape.seq.saturating_sub(first));
        rows.div_ceil(TILE_ROWS.into()) as u32
    }

    /// Whether the queries of a chunk of a rank attend to keys of a chunk of another rank.
    fn chunk_attends(&self, rank: u32, own: u32, source: u32, rank_chunk: u32) -> bool {
        let is_later = self.chunk_of(rank, own) >= self.chunk_of(source, rank_chunk);
        let is_cached = rank_chunk >= self.plan.config.placement.segments();
        self.tiles(rank, own) > 0 && (is_later || !self.plan.config.causal || is_cached)
    }

    /// Whether a rank attends to keys of a chunk of another rank.
    fn attends(&self, rank: u32, source: u32, rank_chunk: u32) -> bool {
        let mut own = 0..self.plan.config.placement.segments();
        own.any(|own| self.chunk_attends(rank, own, source, rank_chunk))
    }

    fn node_attends(&self, node: u32, source: u32, rank_chunk: u32) -> bool {
        let mut ranks = self.topology.first_of(node)..self.topology.first_of(node + 1);
        ranks.any(|rank| self.attends(rank, source, rank_chunk))
    }

    /// The chunks of a rank, cached rows included.
    fn chunks(&self) -> u32 {
        self.plan.config.placement.segments() + u32::from(self.plan.cached_rows() > 0)
    }

    fn expected(&self, rank: u32, own: u32) -> u32 {
        let others = (0..self.topology.world()).filter(|source| *source != rank);
        let of_source = |source: u32| {
            let attended =
                (0..self.chunks()).filter(|chunk| self.chunk_attends(rank, own, source, *chunk));
            attended.map(|chunk| self.tiles(source, chunk)).sum::<u32>()
        };
        others.map(of_source).sum::<u32>() * self.plan.block_parts()
    }

    fn counter(&self, count: Count, index: u32) -> u32 {
        let puts = self.puts();
        let first = match count {
            Count::Own => 0,
            Count::Landed => puts,
            Count::Head => puts * (1 + self.topology.nodes),
        };
        first + index
    }

    /// The puts of a call to each peer.
    fn puts(&self) -> u32 {
        self.plan.kv_heads() as u32 * self.plan.head_puts()
    }

    /// The number of the put that brings a part.
    fn put_of(&self, part: Part) -> u32 {
        part.head * self.plan.head_puts()
            + part.rank_chunk * self.plan.segment_puts()
            + part.tile / self.plan.put_tiles
    }

    fn part(&self, number: u32) -> Option<Part> {
        let block = number / self.plan.block_parts();
        let (head, tile) = (block / self.plan.key_tiles(), block % self.plan.key_tiles());
        let segments = self.plan.config.placement.segments();
        let rank_chunk = (tile / self.plan.segment_tiles.max(1)).min(segments);
        let tile = tile - rank_chunk * self.plan.segment_tiles;
        (u64::from(head) < self.plan.kv_heads()).then_some(Part {
            head,
            rank_chunk,
            tile,
        })
    }

    /// The messages with a part of `source` to the ranks of this node that attend to it.
    fn to_node(&self, view: View, source: u32, part: Part) -> Vec<Message> {
        let head = self.counter(Count::Head, part.head);
        let all = view.to_node(SUB_TILE_BYTES.into(), |_| head).into_iter();
        all.filter(|message| self.attends(message.to, source, part.rank_chunk))
            .collect()
    }

    fn part_us(&self, receivers: usize) -> f64 {
        let costs = &self.costs.attention;
        costs.part_us + costs.receiver_us * receivers as f64
    }

    /// Sends own parts, and in turn forwards the parts of peers that are `PUSH_LEAD` parts behind.
    fn push(&self, rank: u32, worker: u32, turn: u32) -> Option<Action> {
        let nodes = self.topology.nodes;
        let (at, sub) = (worker + turn / nodes * self.plan.push_ctas, turn % nodes);
        let view = View::of(self.topology, rank);
        let parts = self.plan.kv_heads() as u32 * self.plan.key_tiles() * self.plan.block_parts();
        if at >= parts + PUSH_LEAD {
            return None;
        }
        if sub == 0 {
            let own = self
                .part(at)
                .filter(|part| part.tile < self.tiles(rank, part.rank_chunk));
            return Some(own.map_or_else(Action::default, |part| self.push_own(rank, view, part)));
        }
        let part = at
            .checked_sub(PUSH_LEAD)
            .and_then(|number| self.part(number));
        let forwarded =
            part.and_then(|part| self.forward(rank, view, view.ahead_to_peer(sub - 1), part));
        Some(forwarded.unwrap_or_default())
    }

    fn push_own(&self, rank: u32, view: View, part: Part) -> Action {
        let messages = self.to_node(view, rank, part);
        Action {
            work_us: self.part_us(messages.len() + 1),
            messages,
            raises: Some(self.counter(Count::Own, self.put_of(part))),
            ..Action::default()
        }
    }

    fn forward(&self, rank: u32, view: View, ahead: u32, part: Part) -> Option<Action> {
        let source = view.ahead(ahead, 0);
        let has_rows = part.tile < self.tiles(source, part.rank_chunk);
        if !has_rows || !self.node_attends(self.topology.node_of(rank), source, part.rank_chunk) {
            return None;
        }
        let messages = self.to_node(view, source, part);
        let landed = self.counter(Count::Landed, ahead * self.puts() + self.put_of(part));
        let attends = self.attends(rank, source, part.rank_chunk);
        Some(Action {
            work_us: self.part_us(messages.len()),
            messages,
            raises: attends.then(|| self.counter(Count::Head, part.head)),
            ..Action::after(landed, 1)
        })
    }

    /// Puts blocks of own K and V. A peer whose node does not attend to them gets an empty put.
    fn put(&self, rank: u32, turn: u32) -> Option<Action> {
        let (peers, view) = (self.topology.peers(), View::of(self.topology, rank));
        let mut turn = turn;
        if self.plan.takes_rows() {
            if turn < peers {
                return Some(view.begin(1 + turn, 0));
            }
            turn -= peers;
        }
        let (put, ahead) = (turn / peers, 1 + turn % peers);
        if put >= self.puts() {
            return None;
        }
        let (within, of_chunk) = (put % self.plan.head_puts(), self.plan.segment_puts());
        let rank_chunk = (within / of_chunk).min(self.plan.config.placement.segments());
        let first = (within - rank_chunk * of_chunk) * self.plan.put_tiles;
        let tiles = self
            .tiles(rank, rank_chunk)
            .saturating_sub(first)
            .min(self.plan.put_tiles);
        let needs = self.node_attends(
            self.topology.node_of(view.ahead(ahead, 0)),
            rank,
            rank_chunk,
        );
        let bytes = if needs {
            u64::from(tiles * 2 * self.plan.tile_bytes())
        } else {
            0
        };
        let parts = tiles * self.plan.block_parts();
        Some(Action {
            messages: view.put(ahead, bytes, 0, |back| {
                self.counter(Count::Landed, back * self.puts() + put)
            }),
            ..Action::after(self.counter(Count::Own, put), parts)
        })
    }

    /// A tile of queries in the order of mk/attention/tile_scheduler.cuh. It ends when the last keys of its head have arrived and
    /// have been multiplied.
    fn compute(&self, rank: u32, turn: u32) -> Option<Action> {
        let (heads, rows) = (self.plan.heads() as u32, self.plan.row_tiles);
        if turn >= heads * rows {
            return None;
        }
        let per_group = self.plan.group_heads * rows;
        let first = turn / per_group * self.plan.group_heads;
        let in_group = self.plan.group_heads.min(heads - first);
        let within = turn % per_group;
        let head = first + within % in_group;
        let row_tile = rows - 1 - within / in_group;
        let us = self.tile_us * self.keys(rank, row_tile);
        let last =
            f64::from(self.plan.put_tiles) / f64::from(self.plan.key_tiles() * self.topology.nodes);
        let of_kv = (self.plan.shape.heads / self.plan.shape.kv_heads) as u32;
        let expected = &self.expected_parts;
        let own = (row_tile / self.plan.segment_tiles) as usize;
        let expected = expected[rank as usize % expected.len()][own];
        Some(Action {
            before_us: us * (1.0 - last),
            work_us: us * last,
            ..Action::after(self.counter(Count::Head, head / of_kv), expected)
        })
    }
}

impl Schedule for AttentionSchedule {
    fn topology(&self) -> Topology {
        self.topology
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn counters(&self) -> u32 {
        self.counter(Count::Head, self.plan.kv_heads() as u32)
    }

    fn symmetry(&self) -> Symmetry {
        match self.plan.config.causal || self.plan.is_uneven(self.topology.world()) {
            true => Symmetry::Uneven,
            false => Symmetry::Even,
        }
    }

    fn action(&self, rank: u32, lane: usize, list: u32, turn: u32) -> Option<Action> {
        match lane {
            PUSH => self.push(rank, list, turn),
            PUT => self.put(rank, turn),
            _ => self.compute(rank, turn),
        }
    }
}
