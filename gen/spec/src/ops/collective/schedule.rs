//! The messages of `all_gather`, `reduce_scatter` and `all_reduce` across nodes, as mk/collective sends them.

use super::config::VEC_BYTES;
use super::op_plan::CollectivePlan;
use crate::cost::CostTable;
use crate::device::Device;
use crate::parts::schedule::{Action, Lane, Pace, Schedule, Symmetry, View};
use crate::topology::Topology;

/// The roles of mk/collective/simple.cuh.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    PushParts,
    Reduce,
    PutSums,
    PushShard,
    PutShard,
    Relay,
    Collect,
}

impl Role {
    fn lane(self, plan: &CollectivePlan, sm_count: u32) -> Lane {
        let (name, workers) = match self {
            Self::PushParts => ("push", plan.warps.push * sm_count),
            Self::Reduce => ("reduce", plan.warps.reduce * sm_count),
            Self::PutSums => ("put sums", 1),
            Self::PushShard => ("push shard", plan.warps.push * sm_count),
            Self::PutShard => ("put shard", 1),
            Self::Relay => ("relay", plan.warps.relay * sm_count),
            Self::Collect => ("collect", 1),
        };
        Lane::new(name, workers)
    }
}

/// The counters of a rank.
#[derive(Clone, Copy)]
enum Count {
    /// Parts from ranks of this node, by phase and chunk.
    Parts,
    /// Sums of other nodes for this rank, by put.
    SumsIn,
    /// Chunks of this node's sums for other nodes, by phase and put.
    SumsOut,
    /// Own chunks that can be put, by put.
    Own,
    /// Chunks of other nodes, by the distance of the node and put.
    Landed,
    /// Chunks of other ranks, in the memory of this rank.
    Gathered,
}

/// The messages of a collective.
pub(crate) struct CollectiveSchedule {
    plan: CollectivePlan,
    topology: Topology,
    costs: &'static CostTable,
    roles: Vec<Role>,
    lanes: Vec<Lane>,
}

impl CollectiveSchedule {
    pub fn new(plan: &CollectivePlan, topology: Topology, device: &Device) -> Self {
        let op = plan.config.op;
        let reduces = [Role::PushParts, Role::Reduce, Role::PutSums];
        let gathers = [Role::PutShard, Role::Relay, Role::Collect];
        let mut roles = Vec::new();
        match op.reduces() {
            true => roles.extend(reduces),
            false => roles.push(Role::PushShard),
        }
        if op.gathers() {
            roles.extend(gathers);
        }
        let lane = |role: &Role| role.lane(plan, device.sm_count);
        Self {
            plan: plan.clone(),
            topology,
            costs: device.costs(),
            lanes: roles.iter().map(lane).collect(),
            roles,
        }
    }

    /// The chunks of a shard.
    const fn chunks(&self) -> u32 {
        self.plan.shard_chunks() as u32
    }

    /// The puts of a shard.
    const fn puts(&self) -> u32 {
        self.plan.shard_chunks().div_ceil(self.plan.put_chunks) as u32
    }

    /// The put of a chunk.
    const fn put_of(&self, chunk: u32) -> u32 {
        chunk / self.plan.put_chunks as u32
    }

    /// The chunks of a put.
    fn chunks_of(&self, put: u32) -> u32 {
        let put_chunks = self.plan.put_chunks as u32;
        put_chunks.min(self.chunks() - put * put_chunks)
    }

    /// The bytes of `count` chunks from `first` on of the shard of `owner`.
    fn bytes(&self, owner: u32, first: u32, count: u32) -> u64 {
        let before = u64::from(owner) * self.plan.shard_vecs;
        let shard = self
            .plan
            .shard_vecs
            .min(self.plan.vecs().saturating_sub(before));
        let in_shard = u64::from(first) * self.plan.chunk_vecs;
        let vecs = u64::from(count) * self.plan.chunk_vecs;
        shard.saturating_sub(in_shard).min(vecs) * VEC_BYTES
    }

    fn put_bytes(&self, owner: u32, put: u32) -> u64 {
        self.bytes(
            owner,
            put * self.plan.put_chunks as u32,
            self.chunks_of(put),
        )
    }

    fn counter(&self, count: Count, index: u32) -> u32 {
        let (puts, nodes) = (self.puts(), self.topology.nodes);
        let first = match count {
            Count::Parts => return index,
            Count::SumsIn => 0,
            Count::SumsOut => 1,
            Count::Own => 1 + nodes,
            Count::Landed => 2 + nodes,
            Count::Gathered => 2 + 2 * nodes,
        };
        nodes * self.chunks() + first * puts + index
    }

    /// The node, by its distance, and the number within its phase. Nodes ahead come first, and this node last.
    const fn phase(&self, turn: u32, of_phase: u32) -> (u32, u32) {
        ((turn / of_phase + 1) % self.topology.nodes, turn % of_phase)
    }

    fn push_parts(&self, view: View, turn: u32) -> Option<Action> {
        let (peers, nodes) = (self.topology.local_world - 1, self.topology.nodes);
        if peers == 0 || turn >= nodes * self.chunks() * peers {
            return None;
        }
        let (unit, locals) = (turn / peers, 1 + turn % peers);
        let (ahead, chunk) = self.phase(unit, self.chunks());
        let bytes = self.bytes(view.ahead(ahead, locals), chunk, 1);
        let message = view.store(locals, bytes, self.counter(Count::Parts, unit));
        Some(Action {
            work_us: self.costs.collective.copy_us,
            messages: vec![message],
            ..Action::default()
        })
    }

    fn reduce(&self, view: View, turn: u32) -> Option<Action> {
        let Topology { nodes, local_world } = self.topology;
        if turn >= nodes * self.chunks() {
            return None;
        }
        let (ahead, chunk) = self.phase(turn, self.chunks());
        let put = self.put_of(chunk);
        let mut action = Action::after(self.counter(Count::Parts, turn), local_world - 1);
        action.work_us = self.costs.collective.reduce_us;
        if ahead > 0 {
            let phase = turn / self.chunks();
            action.raises = Some(self.counter(Count::SumsOut, phase * self.puts() + put));
            return Some(action);
        }
        action = action.and_after(self.counter(Count::SumsIn, put), nodes - 1);
        if self.plan.config.op.gathers() {
            let bytes = self.bytes(view.ahead(0, 0), chunk, 1);
            action.messages = view.to_node(bytes, |_| self.counter(Count::Gathered, 0));
            action.raises = Some(self.counter(Count::Own, put));
        }
        Some(action)
    }

    fn put_sums(&self, view: View, turn: u32) -> Option<Action> {
        let (ahead, put) = self.phase(turn, self.puts());
        if ahead == 0 {
            return None;
        }
        let bytes = self.put_bytes(view.ahead(ahead, 0), put);
        Some(Action {
            messages: view.put(ahead, bytes, 0, |_| self.counter(Count::SumsIn, put)),
            ..Action::after(self.counter(Count::SumsOut, turn), self.chunks_of(put))
        })
    }

    fn push_shard(&self, rank: u32, view: View, chunk: u32) -> Option<Action> {
        (chunk < self.chunks()).then(|| Action {
            work_us: self.costs.collective.copy_us,
            messages: view.to_node(self.bytes(rank, chunk, 1), |_| {
                self.counter(Count::Gathered, 0)
            }),
            raises: Some(self.counter(Count::Own, self.put_of(chunk))),
            ..Action::default()
        })
    }

    fn put_shard(&self, rank: u32, view: View, turn: u32) -> Option<Action> {
        let peers = self.topology.peers();
        let (put, ahead) = (turn / peers, 1 + turn % peers);
        let channel = self.plan.channels() - 1;
        (put < self.puts()).then(|| Action {
            messages: view.put(ahead, self.put_bytes(rank, put), channel, |back| {
                self.counter(Count::Landed, back * self.puts() + put)
            }),
            ..Action::after(self.counter(Count::Own, put), self.chunks_of(put))
        })
    }

    fn relay(&self, view: View, turn: u32) -> Option<Action> {
        let peers = self.topology.peers();
        let (chunk, ahead) = (turn / peers, view.ahead_to_peer(turn % peers));
        (chunk < self.chunks()).then(|| {
            let bytes = self.bytes(view.ahead(ahead, 0), chunk, 1);
            let landed = ahead * self.puts() + self.put_of(chunk);
            Action {
                work_us: self.costs.collective.copy_us,
                messages: view.to_node(bytes, |_| self.counter(Count::Gathered, 0)),
                raises: Some(self.counter(Count::Gathered, 0)),
                ..Action::after(self.counter(Count::Landed, landed), 1)
            }
        })
    }
}

impl Schedule for CollectiveSchedule {
    fn topology(&self) -> Topology {
        self.topology
    }

    fn pace(&self) -> Pace {
        Pace {
            start_us: self.costs.collective.start_us,
            flag_us: self.costs.flag_us,
            link_share: self.costs.collective.link_share,
            nic_share: self.costs.nic_share,
        }
    }

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn counters(&self) -> u32 {
        self.counter(Count::Gathered, 1)
    }

    fn symmetry(&self) -> Symmetry {
        // The last shard may be a little shorter.
        match self.plan.has_idle_ranks(self.topology.world()) {
            true => Symmetry::Uneven,
            false => Symmetry::Even,
        }
    }

    fn action(&self, rank: u32, lane: usize, list: u32, turn: u32) -> Option<Action> {
        let (role, workers) = (self.roles[lane], self.lanes[lane].workers);
        let view = View::of(self.topology, rank);
        let mut turn = list + turn * workers;
        let channel = match role {
            Role::PutSums => Some(0),
            Role::PutShard => Some(self.plan.channels() - 1),
            _ => None,
        };
        if let Some(channel) = channel.filter(|_| self.plan.takes_rows()) {
            if turn < self.topology.peers() {
                return Some(view.begin(1 + turn, channel));
            }
            turn -= self.topology.peers();
        }
        match role {
            Role::PushParts => self.push_parts(view, turn),
            Role::Reduce => self.reduce(view, turn),
            Role::PutSums => self.put_sums(view, turn),
            Role::PushShard => self.push_shard(rank, view, turn),
            Role::PutShard => self.put_shard(rank, view, turn),
            Role::Relay => self.relay(view, turn),
            Role::Collect => (turn == 0).then(|| Action {
                work_us: self.costs.collective.copy_us,
                ..Action::after(
                    self.counter(Count::Gathered, 0),
                    (self.topology.world() - 1) * self.chunks(),
                )
            }),
        }
    }
}
