//! Symmetric memory of collectives.

use super::config::{Protocol, VEC_BYTES};
use super::op_plan::CollectivePlan;
use crate::parts::region::regions;
use crate::plan::{Element, Workspace};
use crate::topology::Topology;

/// The plan and the topology on which the memory of a kernel depends.
#[derive(Clone, Copy)]
pub(super) struct Needs<'a> {
    op_plan: &'a CollectivePlan,
    topology: Topology,
}

impl Needs<'_> {
    fn is(&self, protocol: Protocol) -> bool {
        (self.topology.world() > 1 || self.op_plan.norm.is_some())
            && self.op_plan.protocol == protocol
    }

    fn announces_begin(&self) -> bool {
        self.op_plan.announces_begin(self.topology)
    }

    fn compares_places(&self) -> bool {
        self.op_plan.compares_places(self.topology)
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

    /// Whether chunks for other nodes pass through other ranks of this node.
    fn exchanges_nodes(&self) -> bool {
        self.op_plan.config.op.exchanges() && self.crosses_nodes()
    }

    fn scatters(&self) -> bool {
        self.op_plan.scatters(self.topology)
    }

    /// The ranks that have shards.
    fn sources(&self) -> u32 {
        self.op_plan.sources(self.topology)
    }

    fn crosses_nodes(&self) -> bool {
        self.topology.peers() > 0
    }

    /// The sums of squares of a row that its warps exchange, if several warps share a row: one sum for each warp, or
    /// for each block.
    fn row_sums(&self) -> Option<u32> {
        let norm = self.op_plan.norm.filter(|norm| norm.warps > 1)?;
        Some(match self.op_plan.config.batch_invariant {
            true => self.op_plan.row_vecs().div_ceil(32) as u32,
            false => norm.warps,
        })
    }

    /// Returns the number of vectors that a rank adds up.
    fn reduced_vecs(&self) -> u64 {
        match self.op_plan.reduces_all() {
            true => self.op_plan.vecs(),
            false => self.op_plan.shard_vecs,
        }
    }

    /// Returns the number of other ranks of a node.
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
    /// The symmetric memory of a rank. It is zeroed once and never reset. The state comes first.
    pub struct CollectiveWorkspace(p: Needs<'_>), from Workspace::STATE_END_BYTES, aligned to 1024;

    /// The mark of the last call that a rank has begun, and the number of its rows if each call gives it. Some pairs of
    /// ranks exchange no data, so ranks announce their calls here.
    begun: Element::Marked, [parity: 2u32, rank: p.topology.world()], for all bodies, if p.announces_begin();
    /// The place of a rank's result in symmetric memory, which must be the same on all ranks.
    result_place: Element::LongWords(1), [parity: 2u32, rank: p.topology.world()], for all bodies, if p.compares_places();
    /// The vectors of a source that this rank adds up: two Lamport packets each, which are 0 between calls.
    parts: Element::Bytes(VEC_BYTES), [parity: 2u32, source: p.topology.world(), vec: p.reduced_vecs()],
        if p.is(Protocol::Ll) && p.reduces();
    /// The vectors that a source has added up: two Lamport packets each, which are 0 between calls.
    sums: Element::Bytes(VEC_BYTES), [parity: 2u32, source: p.topology.world(), vec: p.op_plan.shard_vecs],
        if p.is(Protocol::Ll) && p.reduces() && p.sends_shards();
    /// The shard of a source. Each half of a vector is a packet.
    shards: Element::Packets(1), [parity: 2u32, source: p.sources(), half: 2u32, vec: p.op_plan.shard_vecs],
        if p.is(Protocol::Ll) && !p.reduces();
    /// A warp's part of the sum of squares of a row, or the sum of a block of the row, in the first word of a packet. If the row has
    /// one scale, the second word has the greatest |z · weight| of the part.
    squares: Element::Packets(1), [parity: 2u32, row: p.op_plan.shape.m, part: p.row_sums().unwrap_or(0)],
        if p.row_sums().is_some();
    /// The mark of the last call in which a rank of this node sent its part of the sum of a chunk.
    partial_ready: Element::Flag, [parity: 2u32, node: p.topology.nodes, slot: p.local_peers(), chunk: p.chunks()],
        if p.is(Protocol::Simple) && p.reduces() && p.local_peers() > 0;
    /// The vectors of a chunk from a rank of this node. The chunk belongs to the rank of this local rank on `node`.
    /// Slot s belongs to local rank (g + 1 + s) mod kLocalWorld, where g is this local rank.
    partials: p.chunk(), [parity: 2u32, node: p.topology.nodes, slot: p.local_peers(), chunk: p.chunks()],
        if p.is(Protocol::Simple) && p.reduces() && p.local_peers() > 0;
    /// The mark of the last call in which this node's sum of a peer's chunk was written to sums_out.
    sum_ready: Element::Flag, [parity: 2u32, peer: p.topology.peers(), chunk: p.chunks()], if p.reduces() && p.crosses_nodes();
    /// This node's sums of the chunks of a peer.
    sums_out: p.chunk(), [parity: 2u32, peer: p.topology.peers(), chunk: p.chunks()],
        if p.reduces() && p.crosses_nodes();
    /// The sums of a peer's node for the chunks of this rank.
    sums_in: p.chunk(), [parity: 2u32, peer: p.topology.peers(), chunk: p.chunks()],
        if p.reduces() && p.crosses_nodes();
    /// The mark of the last call in which the root sent a chunk of this rank's shard, which lies in `gathered`.
    scattered: Element::Flag, [parity: 2u32, chunk: p.chunks()], if p.scatters();
    /// The mark of the last call in which a rank of this node sent a chunk for the rank of this local rank on a peer's node.
    outgoing_ready: Element::Flag,
        [parity: 2u32, peer: p.topology.peers(), source: p.topology.local_world, chunk: p.chunks()], if p.exchanges_nodes();
    /// The chunks for a peer from the ranks of this node.
    outgoing: p.chunk(), [parity: 2u32, peer: p.topology.peers(), source: p.topology.local_world, chunk: p.chunks()],
        if p.exchanges_nodes();
    /// The mark of the last call in which a chunk of a source arrived.
    chunk_ready: Element::Flag, [parity: 2u32, source: p.sources(), chunk: p.chunks()],
        if p.is(Protocol::Simple) && p.sends_shards();
    /// The chunks of the shards of all ranks.
    gathered: p.chunk(), [parity: 2u32, source: p.sources(), chunk: p.chunks()],
        if p.is(Protocol::Simple) && p.sends_shards() && !p.stores_to_results();
    /// The number of puts of a peer that have arrived, as `mk/comm/put.cuh` encodes it.
    arrived: Element::Flag, [channel: u32::from(p.op_plan.channels()), peer: p.topology.peers()], if p.crosses_nodes();
}

impl CollectiveWorkspace {
    pub(super) fn of(op_plan: &CollectivePlan, topology: Topology) -> Self {
        Self::new(Needs { op_plan, topology })
    }
}

/// Returns the symmetric memory of a kernel.
pub(super) fn workspace(op_plan: &CollectivePlan, topology: Topology) -> Workspace {
    let memory = CollectiveWorkspace::of(op_plan, topology);
    Workspace::new(memory.regions(), memory.bytes)
}
