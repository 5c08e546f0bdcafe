//! Memory of `combine`: symmetric memory of a rank, and shared memory of a CTA.

use super::op_plan::{CombinePlan, OUTPUTS};
use crate::plan::region::regions;
use crate::plan::{Element, Region, Workspace};
use crate::topology::Topology;

/// Dynamic shared memory may start anywhere, and kernels align it to as many bytes.
const SMEM_ALIGN: u32 = 1024;
/// A wrong row index: the number of the entry, its token and its value.
const FAULT_WORDS: u64 = 3;

/// What decides which memory a kernel has.
#[derive(Clone, Copy)]
struct Needs<'a> {
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

    fn list_bytes(&self) -> u64 {
        self.op_plan
            .internode
            .as_ref()
            .map_or(0, |internode| internode.list_bytes)
    }
}

regions! {
    /// Symmetric memory of a rank: zeroed once and never reset. The state comes first.
    struct CombineWorkspace(p: Needs<'_>), from Workspace::STATE_END_BYTES, aligned to 1024;

    /// How many tokens a source has, as packets.
    token_counts: Element::Packets(1),
        [parity: 2u32, source: p.topology.world(), packet: p.op_plan.count_packets()], if p.exchanges();
    /// The top-k entries of a source's tokens, a packet each.
    topk_packets: Element::Packets(1),
        [parity: 2u32, source: p.topology.world(), entry: p.op_plan.choices()], if p.exchanges();
    /// The mark of the call in which a part of a partial sum arrived last.
    partial_ready: Element::Flag,
        [from: p.topology.local_world, node: p.topology.nodes, token: p.op_plan.shape.max_tokens, part: p.op_plan.parts()],
        if p.exchanges();
    /// The puts of a peer that have arrived, in the form of `mk/comm/put.cuh`.
    arrived: Element::Flag, [channel: 1u32, peer: p.topology.peers()], if p.crosses_nodes();
    /// Holds the mark of the last call in which this rank found a wrong row index.
    fault_mark: Element::Flag, [], if p.crosses_nodes();
    /// That row index: 1 + the number of the entry, the token and the row index.
    fault: Element::Words(FAULT_WORDS), [], if p.crosses_nodes();
    /// Counts the CTAs that have listed their tokens, over all calls.
    lists_ready: Element::Flag, [], if p.crosses_nodes();
    /// Counts the tokens on the lists for a peer, over all calls: on a line each, since all CTAs add to it.
    listed: Element::Flag, [peer: p.topology.peers()], if p.crosses_nodes();
    /// The same before a call.
    listed_before: Element::Count, [parity: 2u32, peer: p.topology.peers()], if p.crosses_nodes();
    /// Where an own token is on the list for a peer, beside the mark of the call in which it came there last.
    list_positions: Element::Marked, [peer: p.topology.peers(), token: p.op_plan.shape.max_tokens],
        if p.crosses_nodes();
    /// Lists of tokens for peers, and of peers.
    lists_out: Element::Bytes(p.list_bytes()), [parity: 2u32, peer: p.topology.peers()], if p.crosses_nodes();
    lists_in: Element::Bytes(p.list_bytes()), [parity: 2u32, peer: p.topology.peers()], if p.crosses_nodes();
    /// Sums of a peer's node, in the order of the list for it.
    sums_in: Element::Bytes(p.op_plan.row_bytes()), [peer: p.topology.peers(), position: p.op_plan.shape.max_tokens],
        if p.crosses_nodes();
    /// What a rank of this node has of a token of the rank with this local rank on a node.
    partials: Element::Bytes(p.op_plan.row_bytes()),
        [from: p.topology.local_world, node: p.topology.nodes, token: p.op_plan.shape.max_tokens], if p.exchanges();
}

/// What decides the shared memory of a CTA.
#[derive(Clone, Copy)]
struct Stages {
    part_bytes: u32,
    stages: u32,
}

regions! {
    /// Shared memory of a CTA that adds. Parts of rows start on the 16 bytes that TMA wants.
    struct CombineSmem(p: Stages), from 0, aligned to 8;

    /// A part of a row.
    row: Element::Bytes(p.part_bytes.into()), [stage: p.stages];
    /// A part of a sum on its way to memory.
    output: Element::Bytes(p.part_bytes.into()), [buffer: OUTPUTS];
    /// Of a row: its gate weight, how many rows of the sum follow, bytes.
    row_info: Element::Bytes(16), [stage: p.stages];
    /// Where the sum goes.
    row_destination: Element::Bytes(16), [stage: p.stages];
    output_info: Element::Bytes(16), [buffer: OUTPUTS];
    output_destination: Element::Bytes(16), [buffer: OUTPUTS];
    /// Barriers of the two pipelines.
    row_full: Element::Barrier, [stage: p.stages];
    row_empty: Element::Barrier, [stage: p.stages];
    output_full: Element::Barrier, [buffer: OUTPUTS];
    output_empty: Element::Barrier, [buffer: OUTPUTS];
}

/// The symmetric memory that a kernel needs.
pub(super) fn workspace(op_plan: &CombinePlan, topology: Topology) -> Workspace {
    let memory = CombineWorkspace::new(Needs { op_plan, topology });
    Workspace::new(memory.regions(), memory.bytes)
}

/// Shared memory of a CTA, and its bytes with the slack for its alignment.
pub(super) fn smem(part_bytes: u32, stages: u32) -> (Vec<Region>, u32) {
    let memory = CombineSmem::new(Stages { part_bytes, stages });
    (memory.regions(), memory.bytes as u32 + SMEM_ALIGN)
}
