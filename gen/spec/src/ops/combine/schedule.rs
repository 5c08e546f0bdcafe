//! The messages of `combine` across nodes: lists as mk/moe/token_lists.cuh sends them, partial sums that ranks of a node load from each
//! other (mk/moe/token_sums.cuh), and chunks of the sums of nodes.

use super::config::CombineShape;
use super::op_plan::{CombinePlan, LIST_HEADER_BYTES};
use crate::cost::CostTable;
use crate::device::Device;
use crate::ops::dispatch::{Routed, Tokens};
use crate::parts::schedule::{Action, Lane, Pace, Routing, Schedule, Symmetry, View};
use crate::topology::Topology;

/// Bytes of an entry of a list, and of its packet within a node.
const ENTRY_BYTES: u64 = 8;
const ENTRY_PACKET_BYTES: u64 = 16;
/// Sums of chunks that a rank computes at the same time.
const SUMS: u32 = 4;

const LIST: usize = 0;
const PUT_LISTS: usize = 1;
const RELAY_LISTS: usize = 2;
const PARTIALS: usize = 3;
const ADD: usize = 4;
const PUT: usize = 5;
const ACKNOWLEDGE: usize = 6;

/// The counters of a rank.
#[derive(Clone, Copy)]
enum Count {
    Listed,
    /// Sums of own tokens: chunks of other nodes.
    SumsIn,
    /// Partial sums of own tokens by ranks of this node.
    Near,
    /// Lists of peers, by the distance of the node.
    ListIn,
    Acknowledged,
    /// Entries of ranks, by the distances to the rank.
    Entries,
    /// Partial sums for a peer, by the distance of its node and the chunk.
    Partials,
    /// Sums for a peer.
    Out,
    /// Chunks of sums from a peer.
    Landed,
}

/// The messages of a combine.
pub(crate) struct CombineSchedule {
    plan: CombinePlan,
    topology: Topology,
    costs: &'static CostTable,
    memory_gb_s: f64,
    lanes: Vec<Lane>,
    routed: Routed,
    chunks: u32,
}

impl CombineSchedule {
    pub fn new(plan: &CombinePlan, topology: Topology, routing: Routing, device: &Device) -> Self {
        let CombineShape {
            experts,
            top_k,
            max_tokens,
            ..
        } = plan.shape;
        let tokens = Tokens {
            experts,
            top_k,
            max_tokens,
        };
        let routed = Routed::new(tokens, topology, routing);
        let chunk_tokens = plan.chunks().chunk_tokens as u32;
        Self {
            plan: plan.clone(),
            topology,
            costs: device.costs(),
            memory_gb_s: device.memory_gb_s,
            lanes: vec![
                Lane::new("list", 1),
                Lane::new("put lists", 1),
                Lane::new("relay lists", 1),
                Lane::new("partial sums", SUMS),
                Lane::new("add", SUMS),
                Lane::new("put sums", 1),
                Lane::new("acknowledge", 1),
                Lane::new("own sums", 1),
            ],
            chunks: routed.most_to_node().div_ceil(chunk_tokens),
            routed,
        }
    }

    fn chunk_tokens(&self) -> u32 {
        self.plan.chunks().chunk_tokens as u32
    }

    fn in_chunk(&self, tokens: u32, chunk: u32) -> u32 {
        tokens
            .saturating_sub(chunk * self.chunk_tokens())
            .min(self.chunk_tokens())
    }

    fn room_chunks(&self) -> u32 {
        (self.plan.chunks().room_tokens / self.plan.chunks().chunk_tokens) as u32
    }

    fn counter(&self, count: Count, nodes: u32, index: u32) -> u32 {
        let (all, local, chunks) = (self.topology.nodes, self.topology.local_world, self.chunks);
        let by_chunk = |first: u32| 3 + (2 + local) * all + (first * all + nodes) * chunks + index;
        match count {
            Count::Listed => 0,
            Count::SumsIn => 1,
            Count::Near => 2,
            Count::ListIn => 3 + nodes,
            Count::Acknowledged => 3 + all + nodes,
            Count::Entries => 3 + 2 * all + nodes * local + index,
            Count::Partials => by_chunk(0),
            Count::Out => by_chunk(1),
            Count::Landed => by_chunk(2),
        }
    }

    /// The time of a pass over `bytes` bytes in memory while `SUMS` passes share the rate of memory, µs.
    fn pass_us(&self, bytes: u64) -> f64 {
        bytes as f64 * f64::from(SUMS) / self.memory_gb_s / 1e3
    }

    fn list_tokens(&self, from: u32, node: u32) -> u64 {
        u64::from(self.routed.to_node(from, node))
    }

    fn list(&self, view: View) -> Action {
        let bytes = self.plan.choices() * ENTRY_PACKET_BYTES;
        Action {
            work_us: self.costs.flag_us,
            messages: view.to_node(bytes, |back| self.counter(Count::Entries, 0, back)),
            raises: Some(self.counter(Count::Listed, 0, 0)),
            ..Action::default()
        }
    }

    fn put_list(&self, rank: u32, view: View, ahead: u32) -> Action {
        let node = self.topology.node_of(view.ahead(ahead, 0));
        let bytes =
            LIST_HEADER_BYTES + self.list_tokens(rank, node) * self.plan.shape.top_k * ENTRY_BYTES;
        Action {
            messages: view.put(ahead, bytes, 0, |back| self.counter(Count::ListIn, back, 0)),
            ..Action::after(self.counter(Count::Listed, 0, 0), 1)
        }
    }

    fn relay_list(&self, rank: u32, view: View, ahead: u32) -> Action {
        let source = view.ahead(ahead, 0);
        let entries = self.list_tokens(source, self.topology.node_of(rank)) * self.plan.shape.top_k;
        Action {
            work_us: self.costs.collective.packet_us,
            messages: view.to_node(entries * ENTRY_PACKET_BYTES, |back| {
                self.counter(Count::Entries, ahead, back)
            }),
            raises: Some(self.counter(Count::Entries, ahead, 0)),
            ..Action::after(self.counter(Count::ListIn, ahead, 0), 1)
        }
    }

    /// Partial sums of tokens of other ranks: first of ranks on other nodes, for the rank of this node that adds them, and then of
    /// ranks of this node. That rank loads a sum, which is a message here.
    fn partials(&self, rank: u32, view: View, turn: u32) -> Option<Action> {
        let (peers, mates) = (self.topology.peers(), self.topology.local_world - 1);
        if mates == 0 {
            return None;
        }
        let far = self.chunks * peers * mates;
        if turn < far {
            let (chunk, of) = (turn / (peers * mates), turn % (peers * mates));
            let (ahead, locals) = (view.ahead_to_peer(of / mates), 1 + of % mates);
            let source = view.ahead(ahead, locals);
            let all = self.routed.to_node(source, self.topology.node_of(rank));
            let tokens = self.in_chunk(all, chunk);
            if tokens == 0 {
                return Some(Action::default());
            }
            let share =
                u64::from(self.routed.to_rank(source, rank)) * u64::from(tokens) / u64::from(all);
            let bytes = share * self.plan.row_bytes();
            return Some(Action {
                work_us: self.pass_us(2 * bytes),
                messages: vec![view.store(
                    locals,
                    bytes,
                    self.counter(Count::Partials, ahead, chunk),
                )],
                ..Action::after(self.counter(Count::Entries, ahead, locals), 1)
            });
        }
        let locals = 1 + turn - far;
        (locals <= mates).then(|| {
            let tokens = self.routed.to_rank(view.ahead(0, locals), rank);
            let bytes = u64::from(tokens) * self.plan.row_bytes();
            Action {
                work_us: self.pass_us(2 * bytes),
                messages: vec![view.store(locals, bytes, self.counter(Count::Near, 0, 0))],
                ..Action::after(self.counter(Count::Entries, 0, locals), 1)
            }
        })
    }

    /// The tokens of a chunk of a peer's list for this node, by turn; `None` after the last chunk.
    fn chunk(&self, rank: u32, turn: u32, ahead: impl Fn(u32) -> u32) -> Option<(u32, u32, u32)> {
        let (chunk, peer) = (turn / self.topology.peers(), turn % self.topology.peers());
        let ahead = ahead(peer);
        let source = View::of(self.topology, rank).ahead(ahead, 0);
        let tokens = self.routed.to_node(source, self.topology.node_of(rank));
        (chunk < self.chunks).then(|| (ahead, chunk, self.in_chunk(tokens, chunk)))
    }

    fn add(&self, rank: u32, view: View, turn: u32) -> Option<Action> {
        let (ahead, chunk, tokens) = self.chunk(rank, turn, |peer| view.ahead_to_peer(peer))?;
        if tokens == 0 {
            return Some(Action::default());
        }
        let bytes = u64::from(tokens) * self.plan.row_bytes();
        let mates = self.topology.local_world - 1;
        let expected = match mates {
            0 => Action::after(self.counter(Count::Entries, ahead, 0), 1),
            _ => Action::after(self.counter(Count::Partials, ahead, chunk), mates),
        };
        let mut action = Action {
            work_us: self.costs.flag_us + self.pass_us(u64::from(2 + mates) * bytes),
            raises: Some(self.counter(Count::Out, ahead, chunk)),
            ..expected
        };
        if let Some(earlier) = (chunk + 1)
            .checked_sub(self.room_chunks())
            .filter(|count| *count > 0)
        {
            action = action.and_after(self.counter(Count::Acknowledged, ahead, 0), earlier);
        }
        Some(action)
    }

    fn put(&self, rank: u32, view: View, turn: u32) -> Option<Action> {
        let (ahead, chunk, tokens) = self.chunk(rank, turn, |peer| 1 + peer)?;
        let bytes = u64::from(tokens) * self.plan.row_bytes();
        Some(match tokens {
            0 => Action::default(),
            _ => Action {
                messages: view.put(ahead, bytes, 0, |back| {
                    self.counter(Count::Landed, back, chunk)
                }),
                ..Action::after(self.counter(Count::Out, ahead, chunk), 1)
            },
        })
    }

    /// Takes the chunks of own sums from each peer, and acknowledges chunks whose places are needed again.
    fn acknowledge(&self, rank: u32, view: View, turn: u32) -> Option<Action> {
        let (chunk, peer) = (turn / self.topology.peers(), turn % self.topology.peers());
        let ahead = view.ahead_to_peer(peer);
        let tokens = self
            .routed
            .to_node(rank, self.topology.node_of(view.ahead(ahead, 0)));
        if chunk >= self.chunks {
            return None;
        }
        if self.in_chunk(tokens, chunk) == 0 {
            return Some(Action::default());
        }
        let chunks = tokens.div_ceil(self.chunk_tokens());
        let messages = match self.plan.acknowledges() && chunk + self.room_chunks() < chunks {
            true => view.put(ahead, 0, 1, |back| {
                self.counter(Count::Acknowledged, back, 0)
            }),
            false => Vec::new(),
        };
        Some(Action {
            messages,
            raises: Some(self.counter(Count::SumsIn, 0, 0)),
            ..Action::after(self.counter(Count::Landed, ahead, chunk), 1)
        })
    }

    fn own(&self, rank: u32) -> Action {
        let own = self.topology.node_of(rank);
        let others = (0..self.topology.nodes).filter(|node| *node != own);
        let chunks: u32 = others
            .map(|node| {
                self.routed
                    .to_node(rank, node)
                    .div_ceil(self.chunk_tokens())
            })
            .sum();
        Action {
            work_us: self.costs.flag_us,
            ..Action::after(self.counter(Count::SumsIn, 0, 0), chunks).and_after(
                self.counter(Count::Near, 0, 0),
                self.topology.local_world - 1,
            )
        }
    }
}

impl Schedule for CombineSchedule {
    fn topology(&self) -> Topology {
        self.topology
    }

    fn pace(&self) -> Pace {
        Pace {
            start_us: self.costs.launch_us,
            flag_us: self.costs.flag_us,
            link_share: self.costs.push_share,
            nic_share: self.costs.nic_share,
        }
    }

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn counters(&self) -> u32 {
        self.counter(Count::Landed, self.topology.nodes, 0)
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Uneven
    }

    fn action(&self, rank: u32, lane: usize, list: u32, turn: u32) -> Option<Action> {
        let view = View::of(self.topology, rank);
        let turn = list + turn * self.lanes[lane].workers;
        let peers = self.topology.peers();
        match lane {
            LIST => (turn == 0).then(|| self.list(view)),
            PUT_LISTS => (turn < peers).then(|| self.put_list(rank, view, 1 + turn)),
            RELAY_LISTS => {
                (turn < peers).then(|| self.relay_list(rank, view, view.ahead_to_peer(turn)))
            }
            PARTIALS => self.partials(rank, view, turn),
            ADD => self.add(rank, view, turn),
            PUT => self.put(rank, view, turn),
            ACKNOWLEDGE => self.acknowledge(rank, view, turn),
            _ => (turn == 0).then(|| self.own(rank)),
        }
    }
}
