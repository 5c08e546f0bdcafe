//! Memory of `combine`: symmetric memory of a rank, and shared memory of a CTA.

use super::op_plan::{CombinePlan, OUTPUTS, SumPipeline};
use crate::options::SMEM_ALIGN;
use crate::parts::region::regions;
use crate::plan::{Element, Region, Workspace};
use crate::topology::Topology;

/// The number of words that describe a wrong row index: the number of the entry, its token and its value.
const FAULT_WORDS: u64 = 3;

/// The plan and the topology on which the memory of a kernel depends.
#[derive(Clone, Copy)]
pub(super) struct Needs<'a> {
    op_plan: &'a CombinePlan,
    topology: Topology,
}

impl Needs<'_> {
    fn exchanges(&self) -> bool {
        self.topology.world() > 1
    }

    fn crosses_nodes(&self) -> bool {
        self.op_plan.internode.is_some()
    }

    fn has_low_latency(&self) -> bool {
        self.op_plan.low_latency_tokens > 0
    }

    fn has_pipeline(&self) -> bool {
        self.op_plan.pipeline.is_some()
    }

    fn keeps_partials(&self) -> bool {
        self.crosses_nodes() && self.topology.local_world > 1
    }

    /// Returns the element of a mark. On several nodes, marks are too many for an L2 line each.
    fn partial_mark(&self) -> Element {
        if self.crosses_nodes() {
            Element::Count
        } else {
            Element::Flag
        }
    }

    fn list_bytes(&self) -> u64 {
        self.op_plan
            .internode
            .as_ref()
            .map_or(0, |internode| internode.list_bytes)
    }
}

regions! {
    /// The symmetric memory of a rank. It is zeroed once and never reset. The state comes first.
    pub struct CombineWorkspace(p: Needs<'_>), from Workspace::STATE_END_BYTES, aligned to 1024;

    /// The counts of a source's tokens, as LL packets.
    token_counts: Element::Packets(1),
        [parity: 2u32, source: p.topology.world(), packet: p.op_plan.count_packets()], if p.exchanges();
    /// The top-k entries of a source's tokens, each as an LL packet.
    topk_packets: Element::Packets(1),
        [parity: 2u32, source: p.topology.world(), entry: p.op_plan.choices()], if p.exchanges();
    /// The mark of the last call in which a part of a partial sum arrived.
    partial_ready: p.partial_mark(),
        [from: p.topology.local_world, node: p.topology.nodes, token: p.op_plan.shape.max_tokens, part: p.op_plan.parts()],
        if p.exchanges() && p.has_pipeline();
    /// The number of puts of a peer that have arrived, as `mk/comm/put.cuh` encodes it.
    arrived: Element::Flag,
        [channel: p.op_plan.chunks().channels(p.op_plan.shape.max_tokens), peer: p.topology.peers()],
        if p.crosses_nodes();
    /// The mark of the last call in which this rank found a wrong row index.
    fault_mark: Element::Flag, [], if p.crosses_nodes();
    /// The wrong row index: 1 + the number of its entry, the token, and the row index.
    fault: Element::Words(FAULT_WORDS), [], if p.crosses_nodes();
    /// Counts the CTAs that have listed their tokens, over all calls.
    lists_ready: Element::Flag, [], if p.crosses_nodes();
    /// Counts the tokens on the lists for a peer, over all calls. Each counter has a line of L2, since all CTAs add to
    /// it.
    listed: Element::Flag, [peer: p.topology.peers()], if p.crosses_nodes();
    /// The value of `listed` when a call begins.
    listed_before: Element::Count, [parity: 2u32, peer: p.topology.peers()], if p.crosses_nodes();
    /// The position of an own token on the list for a peer, and the mark of the last call in which it was on a list.
    list_positions: Element::Marked, [peer: p.topology.peers(), token: p.op_plan.shape.max_tokens],
        if p.crosses_nodes();
    /// The lists of tokens for peers, and the lists from peers.
    lists_out: Element::Bytes(p.list_bytes()), [parity: 2u32, peer: p.topology.peers()], if p.crosses_nodes();
    lists_in: Element::Bytes(p.list_bytes()), [parity: 2u32, peer: p.topology.peers()], if p.crosses_nodes();
    /// The index of the first sum of a peer's node, and the mark of the call.
    sums_begin: Element::Marked, [peer: p.topology.peers()], if p.crosses_nodes();
    /// The sums of the peers' nodes. The sums of a peer's node are contiguous, in the order of the list for that peer.
    sums_in: Element::Bytes(p.op_plan.row_bytes()), [slot: p.op_plan.listed_tokens(p.topology)], if p.crosses_nodes();
    /// The sums of this node for a peer, from which puts take them.
    sums_out: Element::Bytes(p.op_plan.row_bytes()), [peer: p.topology.peers(), slot: p.op_plan.chunks().room_tokens],
        if p.crosses_nodes();
    /// The mark of the last call in which the slot of a row had a part of a partial sum.
    slot_mark: Element::Count, [row: p.op_plan.partial_slots(p.topology), part: p.op_plan.parts()],
        if p.keeps_partials() && p.op_plan.has_slots_of_rows(p.topology);
    /// Several nodes: the partial sums of this rank, which other ranks of the node load.
    kept_partials: Element::Bytes(p.op_plan.row_bytes()), [slot: p.op_plan.partial_slots(p.topology)],
        if p.keeps_partials();
    /// One node: the partial sum of another rank for a token of this rank.
    partials: Element::Bytes(p.op_plan.row_bytes()), [from: p.topology.local_world, token: p.op_plan.shape.max_tokens],
        if p.exchanges() && !p.crosses_nodes() && p.has_pipeline();
    /// The partial sum of another rank for a token of this rank, as Lamport packets, if this rank has few tokens.
    partial_packets: Element::Bytes(p.op_plan.row_bytes()),
        [parity: 2u32, from: p.topology.local_world, token: p.op_plan.low_latency_tokens],
        if p.exchanges() && p.has_low_latency();
}

/// The sizes on which the shared memory of a CTA depends.
#[derive(Clone, Copy)]
pub(super) struct SmemNeeds {
    /// The ranks whose numbers of tokens are kept.
    counted_ranks: u32,
    pipeline: Option<SumPipeline>,
}

impl SmemNeeds {
    const fn has_pipeline(&self) -> bool {
        self.pipeline.is_some()
    }

    fn stages(&self) -> u32 {
        self.pipeline.map_or(0, |pipeline| pipeline.stages)
    }

    fn part(&self) -> Element {
        let part_bytes = self.pipeline.map_or(0, |pipeline| pipeline.part_bytes);
        Element::Bytes(part_bytes.into())
    }
}

regions! {
    /// The shared memory of a CTA that adds. Parts of rows are aligned to 16 bytes, as TMA requires.
    pub struct CombineSmem(p: SmemNeeds), from 0, aligned to 8;

    /// The part of a row in a stage.
    row: p.part(), [stage: p.stages()], if p.has_pipeline();
    /// The part of a sum in an output buffer.
    output: p.part(), [buffer: OUTPUTS], if p.has_pipeline();
    /// The weight of the row, the number of rows of the sum that follow it, and the bytes of the part.
    row_info: Element::Bytes(16), [stage: p.stages()], if p.has_pipeline();
    /// The destination of the sum.
    row_destination: Element::Bytes(16), [stage: p.stages()], if p.has_pipeline();
    /// The row information and the destination of the sum in an output buffer.
    output_info: Element::Bytes(16), [buffer: OUTPUTS], if p.has_pipeline();
    output_destination: Element::Bytes(16), [buffer: OUTPUTS], if p.has_pipeline();
    /// The tokens of each rank.
    tokens_of: Element::Words(1), [rank: p.counted_ranks], if p.counted_ranks > 0;
    /// The barriers of the two pipelines.
    row_full: Element::Barrier, [stage: p.stages()], if p.has_pipeline();
    row_empty: Element::Barrier, [stage: p.stages()], if p.has_pipeline();
    output_full: Element::Barrier, [buffer: OUTPUTS], if p.has_pipeline();
    output_empty: Element::Barrier, [buffer: OUTPUTS], if p.has_pipeline();
}

impl CombineWorkspace {
    pub(super) fn of(op_plan: &CombinePlan, topology: Topology) -> Self {
        Self::new(Needs { op_plan, topology })
    }
}

impl CombineSmem {
    pub(super) fn of(low_latency_tokens: u64, pipeline: Option<SumPipeline>, world: u32) -> Self {
        let counts = low_latency_tokens > 0 && pipeline.is_some() && world > 1;
        Self::new(SmemNeeds {
            counted_ranks: if counts { world } else { 0 },
            pipeline,
        })
    }
}

/// Returns the symmetric memory of a kernel.
pub(super) fn workspace(op_plan: &CombinePlan, topology: Topology) -> Workspace {
    let memory = CombineWorkspace::of(op_plan, topology);
    Workspace::new(memory.regions(), memory.bytes)
}

/// Returns the shared memory of a CTA, and its bytes including the slack for its alignment.
pub(super) fn smem(
    low_latency_tokens: u64,
    pipeline: Option<SumPipeline>,
    world: u32,
) -> (Vec<Region>, u32) {
    let memory = CombineSmem::of(low_latency_tokens, pipeline, world);
    (memory.regions(), memory.bytes as u32 + SMEM_ALIGN)
}
