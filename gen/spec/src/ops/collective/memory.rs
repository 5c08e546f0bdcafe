//! Symmetric memory of collectives.

use super::config::Protocol;
use super::op_plan::{CollectivePlan, VEC_BYTES};
use crate::plan::region::regions;
use crate::plan::{Element, Workspace};
use crate::topology::Topology;

/// What decides which memory a kernel has.
#[derive(Clone, Copy)]
struct Needs<'a> {
    op_plan: &'a CollectivePlan,
    topology: Topology,
}

impl Needs<'_> {
    fn is(&self, protocol: Protocol) -> bool {
        self.topology.world() > 1 && self.op_plan.protocol == protocol
    }

    fn announces_begin(&self) -> bool {
        self.op_plan.announces_begin(self.topology)
    }

    fn reduces(&self) -> bool {
        self.op_plan.config.op.reduces()
    }

    fn sends_shards(&self) -> bool {
        self.op_plan.sends_shards(self.topology)
    }

    fn stores_to_results(&self) -> bool {
        self.op_plan.stores_to_results(self.topology)
    }

    fn crosses_nodes(&self) -> bool {
        self.topology.peers() > 0
    }

    /// Vectors that a rank adds up.
    fn reduced_vecs(&self) -> u64 {
        match self.op_plan.reduces_all() {
            true => self.op_plan.vecs(),
            false => self.op_plan.shard_vecs,
        }
    }

    /// Other ranks of a node.
    fn local_peers(&self) -> u32 {
        self.topology.local_world - 1
    }

    fn chunk(&self) -> Element {
        Element::Bytes(self.op_plan.chunk_vecs * VEC_BYTES)
    }

    fn chunks(&self) -> u64 {
        self.op_plan.shard_chunks()
    }
}

regions! {
    /// Symmetric memory of a rank: zeroed once and never reset. The state comes first.
    struct CollectiveWorkspace(p: Needs<'_>), from Workspace::STATE_END_BYTES, aligned to 1024;

    /// The call that a rank has begun, and its rows if each call gives them. Some pairs of ranks exchange no data, and all
    /// must have the same rows.
    begun: Element::Marked, [parity: 2u32, rank: p.topology.world()], if p.announces_begin();
    /// Where the result of a rank lies in symmetric memory, which must be the same on all ranks.
    result_place: Element::LongWords(1), [parity: 2u32, rank: p.topology.world()], if p.stores_to_results();
    /// What a source has of the vectors that this rank adds up, in two packets each.
    parts: Element::Packets(1), [parity: 2u32, source: p.topology.world(), half: 2u32, vec: p.reduced_vecs()],
        if p.is(Protocol::Ll) && p.reduces();
    /// The shard of a source, in two packets per vector.
    shards: Element::Packets(1), [parity: 2u32, source: p.topology.world(), half: 2u32, vec: p.op_plan.shard_vecs],
        if p.is(Protocol::Ll) && p.sends_shards();
    /// The call in which a rank of this node has sent what it has of a chunk.
    partial_ready: Element::Flag, [parity: 2u32, node: p.topology.nodes, slot: p.local_peers(), chunk: p.chunks()],
        if p.is(Protocol::Simple) && p.reduces() && p.local_peers() > 0;
    /// What a rank of this node has of a chunk of the shard of this local rank on a node. Slot s is that of local rank
    /// (g + 1 + s) mod kLocalWorld, where g is this local rank.
    partials: p.chunk(), [parity: 2u32, node: p.topology.nodes, slot: p.local_peers(), chunk: p.chunks()],
        if p.is(Protocol::Simple) && p.reduces() && p.local_peers() > 0;
    /// The call in which this node's sum of a peer's chunk is in sums_out.
    sum_ready: Element::Flag, [parity: 2u32, peer: p.topology.peers(), chunk: p.chunks()], if p.reduces() && p.crosses_nodes();
    /// This node's sums of a peer's chunks.
    sums_out: p.chunk(), [parity: 2u32, peer: p.topology.peers(), chunk: p.chunks()],
        if p.reduces() && p.crosses_nodes();
    /// The sums that a peer's node has of this rank's chunks.
    sums_in: p.chunk(), [parity: 2u32, peer: p.topology.peers(), chunk: p.chunks()],
        if p.reduces() && p.crosses_nodes();
    /// The call in which a chunk of a source has arrived.
    chunk_ready: Element::Flag, [parity: 2u32, source: p.topology.world(), chunk: p.chunks()],
        if p.is(Protocol::Simple) && p.sends_shards();
    /// Chunks of the shards of all ranks.
    gathered: p.chunk(), [parity: 2u32, source: p.topology.world(), chunk: p.chunks()],
        if p.is(Protocol::Simple) && p.sends_shards() && !p.stores_to_results();
    /// The puts of a peer that have arrived, in the form of `mk/comm/put.cuh`.
    arrived: Element::Flag, [channel: u32::from(p.op_plan.channels()), peer: p.topology.peers()], if p.crosses_nodes();
}

/// The symmetric memory that a kernel needs.
pub(super) fn workspace(op_plan: &CollectivePlan, topology: Topology) -> Workspace {
    let memory = CollectiveWorkspace::new(Needs { op_plan, topology });
    Workspace::new(memory.regions(), memory.bytes)
}
