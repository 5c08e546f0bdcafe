//! The messages of `dispatch_gemm` across nodes, as mk/moe/packets.cuh and mk/moe/node_tokens.cuh send them. The blocks of a chunk
//! travel together here.

use super::op_plan::DispatchPlan;
use super::routing::{Routed, Tokens};
use super::work;
use crate::cost::CostTable;
use crate::device::Device;
use crate::parts::schedule::{Action, Lane, Pace, Routing, Schedule, Symmetry, View};
use crate::roofline::{Bound, Traffic};
use crate::topology::Topology;

/// The parts of a product for which tokens arrive one after the other.
const STEPS: u32 = 16;

const ROUTE: usize = 0;
const PUT_PACKETS: usize = 1;
const FORWARD_PACKETS: usize = 2;
const SEND: usize = 3;
const PUT: usize = 4;
const ACKNOWLEDGE: usize = 5;

/// The counters of a rank.
#[derive(Clone, Copy)]
enum Count {
    Routed,
    /// Ranks whose counts are known.
    Counted,
    /// Messages with tokens.
    Arrived,
    /// Packets of peers, by the distance of the node.
    PacketIn,
    /// Acknowledgements of peers, by the distance of the node.
    Acknowledged,
    /// Packed chunks, by the distance of the node and the chunk.
    Packed,
    /// Chunks of peers, by the distance of the node and the chunk.
    Landed,
    /// Forwarded chunks of peers.
    Forwarded,
}

/// The messages of a dispatch.
pub(crate) struct DispatchSchedule {
    plan: DispatchPlan,
    topology: Topology,
    costs: &'static CostTable,
    pace: Pace,
    lanes: Vec<Lane>,
    routed: Routed,
    /// The time of the product of a rank with the expected rows, and these rows.
    compute_us: f64,
    expected_rows: f64,
    /// The most chunks from one rank to one node.
    chunks: u32,
    /// By rank, the messages with tokens that arrive.
    arrivals: Vec<u32>,
}

impl DispatchSchedule {
    pub fn new(
        plan: &DispatchPlan,
        (topology, traffic): (Topology, &Traffic),
        routing: Routing,
        device: &Device,
    ) -> Self {
        let (costs, shape) = (device.costs(), plan.shape);
        let tokens = Tokens {
            experts: shape.experts,
            top_k: shape.top_k,
            max_tokens: shape.max_tokens,
        };
        let bound = Bound::new(traffic, device);
        let compute_us = work::products_us(plan, topology, device);
        let warps = device.arch.spec().warps();
        let routed = Routed::new(tokens, topology, routing);
        let in_chunk = plan
            .chunks()
            .chunk_tokens
            .div_ceil(plan.block_tokens.into()) as u32;
        let mut schedule = Self {
            plan: plan.clone(),
            topology,
            costs,
            pace: Pace {
                start_us: costs.launch_us,
                flag_us: costs.flag_us,
                link_share: costs.store_share(compute_us, bound.link_us.max(1.0)),
                nic_share: costs.nic_share,
            },
            lanes: vec![
                Lane::new("route", 1),
                Lane::new("put packets", 1),
                Lane::new("forward packets", plan.comm_ctas.max(1)),
                Lane::new("push and relay", (plan.comm_ctas * warps / in_chunk).max(1)),
                Lane::new("put", 1),
                Lane::new("acknowledge", 1),
                Lane::new("compute", 1),
            ],
            compute_us,
            expected_rows: plan.expected_routing(topology).rows,
            chunks: 0,
            arrivals: Vec::new(),
            routed,
        };
        schedule.chunks = schedule.chunks_of(schedule.routed.most_to_node());
        schedule.arrivals = (0..topology.world())
            .map(|rank| schedule.arrivals_at(rank))
            .collect();
        schedule
    }

    fn chunk_tokens(&self) -> u32 {
        self.plan.chunks().chunk_tokens as u32
    }

    fn chunks_of(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.chunk_tokens())
    }

    /// The tokens of a chunk of `tokens` tokens.
    fn in_chunk(&self, tokens: u32, chunk: u32) -> u32 {
        tokens
            .saturating_sub(chunk * self.chunk_tokens())
            .min(self.chunk_tokens())
    }

    fn room_chunks(&self) -> u32 {
        (self.plan.chunks().room_tokens / self.plan.chunks().chunk_tokens) as u32
    }

    fn arrivals_at(&self, rank: u32) -> u32 {
        let node = self.topology.node_of(rank);
        let sources = (0..self.topology.world()).filter(|source| *source != rank);
        let of_source = |source| match self.topology.node_of(source) == node {
            true => self.chunks_of(self.routed.to_rank(source, rank)),
            false => self.chunks_of(self.routed.to_node(source, node)),
        };
        sources.map(of_source).sum()
    }

    fn counter(&self, count: Count, nodes: u32, chunk: u32) -> u32 {
        let all = self.topology.nodes;
        match count {
            Count::Routed => 0,
            Count::Counted => 1,
            Count::Arrived => 2,
            Count::PacketIn => 3 + nodes,
            Count::Acknowledged => 3 + all + nodes,
            Count::Packed => 3 + 2 * all + nodes * self.chunks + chunk,
            Count::Landed => 3 + 2 * all + (all + nodes) * self.chunks + chunk,
            Count::Forwarded => 3 + 2 * all + (2 * all + nodes) * self.chunks + chunk,
        }
    }

    fn store_us(&self, bytes: u64) -> f64 {
        let at_a_time = f64::from(self.lanes[SEND].workers) / f64::from(self.plan.comm_ctas.max(1));
        bytes as f64 * at_a_time / self.costs.comm_cta_gb_s / 1e3
    }

    fn packet_bytes(&self, rank: u32, node: u32) -> u64 {
        let tokens = u64::from(self.routed.to_node(rank, node));
        let needs = if self.topology.local_world > 1 {
            tokens
        } else {
            0
        };
        let first = self.topology.first_of(node);
        let ranks = first..first + self.topology.local_world;
        let rows: u64 = ranks
            .map(|to| u64::from(self.routed.to_rank(rank, to)))
            .sum();
        4 * (self.plan.count_words() + needs + rows)
    }

    fn route(&self, view: View) -> Action {
        let bytes = 4 * self.plan.count_words();
        Action {
            work_us: self.costs.dispatch.routing_us / 2.0,
            messages: view.to_node(bytes, |_| self.counter(Count::Counted, 0, 0)),
            raises: Some(self.counter(Count::Routed, 0, 0)),
            ..Action::default()
        }
    }

    fn put_packet(&self, rank: u32, view: View, ahead: u32) -> Action {
        let bytes = self.packet_bytes(rank, self.topology.node_of(view.ahead(ahead, 0)));
        Action {
            messages: view.put(ahead, bytes, 0, |back| {
                self.counter(Count::PacketIn, back, 0)
            }),
            ..Action::after(self.counter(Count::Routed, 0, 0), 1)
        }
    }

    fn forward_packet(&self, view: View, ahead: u32) -> Action {
        let bytes = 4 * self.plan.count_words();
        Action {
            work_us: self.costs.flag_us,
            messages: view.to_node(bytes, |_| self.counter(Count::Counted, 0, 0)),
            raises: Some(self.counter(Count::Counted, 0, 0)),
            ..Action::after(self.counter(Count::PacketIn, ahead, 0), 1)
        }
    }

    /// Packs own chunks for peers and sends own tokens to ranks of this node, and then forwards chunks of peers.
    fn send(&self, rank: u32, view: View, turn: u32) -> Option<Action> {
        let (peers, mates) = (self.topology.peers(), self.topology.local_world - 1);
        let own_chunks = self.chunks_of(self.plan.shape.max_tokens as u32);
        let own = own_chunks * (peers + mates);
        let token_bytes = self.plan.token_bytes();
        if turn < own {
            let (chunk, to) = (turn / (peers + mates), turn % (peers + mates));
            let counted = Action::after(
                self.counter(Count::Counted, 0, 0),
                self.topology.world() - 1,
            );
            if to < peers {
                let ahead = view.ahead_to_peer(to);
                let tokens = self
                    .routed
                    .to_node(rank, self.topology.node_of(view.ahead(ahead, 0)));
                let tokens = self.in_chunk(tokens, chunk);
                return Some(match tokens {
                    0 => Action::default(),
                    _ => Action {
                        work_us: self.store_us(u64::from(tokens) * token_bytes),
                        raises: Some(self.counter(Count::Packed, ahead, chunk)),
                        ..counted
                    },
                });
            }
            let locals = 1 + to - peers;
            let tokens = self.in_chunk(self.routed.to_rank(rank, view.ahead(0, locals)), chunk);
            let bytes = u64::from(tokens) * token_bytes;
            return Some(match tokens {
                0 => Action::default(),
                _ => Action {
                    work_us: self.store_us(bytes),
                    messages: vec![view.store(locals, bytes, self.counter(Count::Arrived, 0, 0))],
                    ..counted
                },
            });
        }
        let (chunk, peer) = ((turn - own) / peers, (turn - own) % peers);
        (chunk < self.chunks).then(|| self.forward(rank, view, view.ahead_to_peer(peer), chunk))
    }

    fn forward(&self, rank: u32, view: View, ahead: u32, chunk: u32) -> Action {
        let source = view.ahead(ahead, 0);
        let all = self.routed.to_node(source, self.topology.node_of(rank));
        let tokens = self.in_chunk(all, chunk);
        if tokens == 0 {
            return Action::default();
        }
        let bytes_for = |to: u32| {
            let needed = u64::from(self.routed.to_rank(source, to)) * u64::from(tokens);
            needed * self.plan.token_bytes() / u64::from(all)
        };
        let arrived = self.counter(Count::Arrived, 0, 0);
        let mut messages = view.to_node(0, |_| arrived);
        for message in &mut messages {
            message.bytes = bytes_for(message.to);
        }
        let bytes = messages.iter().map(|message| message.bytes).sum();
        // The own arrival is raised by a message of no bytes to this rank's own counter.
        let mut action = Action::after(self.counter(Count::Landed, ahead, chunk), 1);
        action.work_us = self.store_us(bytes);
        action.messages = messages;
        action.messages.push(view.store(0, 0, arrived));
        action.raises = Some(self.counter(Count::Forwarded, ahead, chunk));
        action
    }

    fn put(&self, rank: u32, view: View, turn: u32) -> Option<Action> {
        let (chunk, ahead) = (
            turn / self.topology.peers(),
            1 + turn % self.topology.peers(),
        );
        if chunk >= self.chunks {
            return None;
        }
        let tokens = self
            .routed
            .to_node(rank, self.topology.node_of(view.ahead(ahead, 0)));
        let tokens = self.in_chunk(tokens, chunk);
        if tokens == 0 {
            return Some(Action::default());
        }
        let bytes = u64::from(tokens) * self.plan.token_bytes();
        let mut action = Action::after(self.counter(Count::Packed, ahead, chunk), 1);
        if let Some(earlier) = (chunk + 1)
            .checked_sub(self.room_chunks())
            .filter(|count| *count > 0)
        {
            action = action.and_after(self.counter(Count::Acknowledged, ahead, 0), earlier);
        }
        action.messages = view.put(ahead, bytes, 0, |back| {
            self.counter(Count::Landed, back, chunk)
        });
        Some(action)
    }

    /// Acknowledges chunks of peers whose places are needed again.
    fn acknowledge(&self, rank: u32, view: View, turn: u32) -> Option<Action> {
        let (chunk, peer) = (turn / self.topology.peers(), turn % self.topology.peers());
        if chunk >= self.chunks {
            return None;
        }
        let ahead = view.ahead_to_peer(peer);
        let tokens = self
            .routed
            .to_node(view.ahead(ahead, 0), self.topology.node_of(rank));
        let is_needed = chunk + self.room_chunks() < self.chunks_of(tokens);
        Some(match is_needed {
            false => Action::default(),
            true => Action {
                messages: view.put(ahead, 0, 1, |back| {
                    self.counter(Count::Acknowledged, back, 0)
                }),
                ..Action::after(self.counter(Count::Forwarded, ahead, chunk), 1)
            },
        })
    }

    /// A part of the product. Tokens arrive in the order of experts, so each part waits for its share of the messages.
    fn compute(&self, rank: u32, step: u32) -> Option<Action> {
        let arrivals = u64::from(self.arrivals[rank as usize]);
        let wanted = (arrivals * u64::from(step + 1)).div_ceil(STEPS.into()) as u32;
        let rows = f64::from(self.routed.rows(rank)) / self.expected_rows;
        (step < STEPS).then(|| Action {
            work_us: self.compute_us * rows / f64::from(STEPS),
            ..Action::after(self.counter(Count::Arrived, 0, 0), wanted)
        })
    }
}

impl Schedule for DispatchSchedule {
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
        self.counter(Count::Forwarded, self.topology.nodes, 0)
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Uneven
    }

    fn action(&self, rank: u32, lane: usize, list: u32, turn: u32) -> Option<Action> {
        let view = View::of(self.topology, rank);
        let turn = list + turn * self.lanes[lane].workers;
        let peers = self.topology.peers();
        match lane {
            ROUTE => (turn == 0).then(|| self.route(view)),
            PUT_PACKETS => (turn < peers).then(|| self.put_packet(rank, view, 1 + turn)),
            FORWARD_PACKETS => {
                (turn < peers).then(|| self.forward_packet(view, view.ahead_to_peer(turn)))
            }
            SEND => self.send(rank, view, turn),
            PUT => self.put(rank, view, turn),
            ACKNOWLEDGE => self.acknowledge(rank, view, turn),
            _ => self.compute(rank, turn),
        }
    }
}
