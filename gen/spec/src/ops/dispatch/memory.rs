//! Memory of operators with products of experts: symmetric memory of a rank, and shared memory of a CTA.

use super::op_plan::{DispatchPlan, FAULT_WORDS, TILE_BUFFERS};
use crate::arch::ArchSpec;
use crate::config::LINE_BYTES;
use crate::ops::gemm::SLOT_BYTES;
use crate::options::SMEM_ALIGN;
use crate::parts::region::regions;
use crate::plan::{Element, Region, Workspace};
use crate::topology::Topology;

/// The plan and the sizes on which the memory of a kernel depends.
#[derive(Clone, Copy)]
pub(super) struct Needs<'a> {
    pub op_plan: &'a DispatchPlan,
    pub topology: Topology,
    pub grid_ctas: u32,
}

impl Needs<'_> {
    fn arch(&self) -> &'static ArchSpec {
        self.op_plan.arch.spec()
    }

    fn world(&self) -> u32 {
        self.topology.world()
    }

    /// Returns whether tokens are routed to their experts.
    fn routes(&self) -> bool {
        self.op_plan.dispatches()
    }

    /// Returns whether tokens are sent to other ranks.
    fn sends(&self) -> bool {
        self.routes() && self.world() > 1
    }

    /// Returns whether tokens are sent to other nodes.
    fn puts(&self) -> bool {
        self.topology.peers() > 0
    }

    /// Returns whether a rank forwards tokens of other nodes to other ranks.
    fn forwards(&self) -> bool {
        self.puts() && self.topology.local_world > 1
    }

    fn local_experts(&self) -> u64 {
        self.op_plan.local_experts(self.world())
    }

    /// Returns the bytes of the rows and columns of C that a warp stores at a time: a line of each row.
    fn out_bytes(&self) -> u64 {
        u64::from(16 * LINE_BYTES)
    }

    fn packet_words(&self) -> u64 {
        self.op_plan
            .internode
            .as_ref()
            .map_or(0, |a| a.packet_bytes / 4)
    }
}

regions! {
    /// The symmetric memory of a rank. It is zeroed once and never reset, except for the counters of tiles. The state
    /// comes first.
    pub struct DispatchWorkspace(p: Needs<'_>), from Workspace::STATE_END_BYTES, aligned to 1024;

    /// Counts the CTAs that have counted the top-k entries of their slice, over all calls.
    counted: Element::Flag, [], if p.routes();
    /// Counts the tiles that CTAs have taken. Each call resets the counter of the next call.
    tiles_taken: Element::Words(1), [parity: 2u32];
    /// The mark of the last call in which this rank found a fault in its operands.
    fault_mark: Element::Flag, [], if p.routes();
    /// The words of the fault in the operands.
    fault: Element::Words(FAULT_WORDS), [], if p.routes();
    /// For the slice of each CTA: the rows of an expert in the upper half of a word, and the tokens that are sent for
    /// it in the lower half.
    slice_counts: Element::Words(1), [cta: p.grid_ctas, expert: p.op_plan.shape.experts], if p.routes();
    /// Counts the CTAs of a source whose part of its message and list has arrived, over all calls.
    routed: Element::Flag, [source: p.world()], if p.routes();
    /// The message of a source: a fault, the rows of each expert, and the tokens that the source sends for each expert.
    messages: Element::Words(p.op_plan.count_words()), [parity: 2u32, source: p.world()], if p.routes();
    /// For each row of a source's tokens on this rank, expert by expert: the slot of the token, or the number of the
    /// token if this rank is the source.
    lists: Element::Words(1), [parity: 2u32, source: p.world(), row: p.op_plan.source_rows], if p.routes();
    /// For each row of a source's tokens on this rank, its choice: `token · top_k + k` of the source.
    choices: Element::Words(1), [parity: 2u32, source: p.world(), row: p.op_plan.source_rows], if p.op_plan.is_layer();
    /// The numbers of the tokens that are sent to a destination, by slot.
    send_list: Element::Words(1), [destination: p.topology.destinations(), slot: p.op_plan.shape.max_tokens],
        if p.sends();
    /// The mark of the last call in which a block of a source's tokens arrived.
    token_ready: Element::Flag, [source: p.world(), block: p.op_plan.blocks()], if p.sends();
    /// One node: the tokens of other ranks. `distance` 0 is the next rank.
    received: Element::Bytes(p.op_plan.token_bytes()), [distance: p.world() - 1, slot: p.op_plan.shape.max_tokens],
        if p.sends() && !p.puts();
    /// Several nodes: the tokens of other ranks, with a segment for each source.
    segments: Element::Bytes(p.op_plan.token_bytes()), [token: p.op_plan.segment_tokens(p.topology)], if p.puts();
    /// The tokens that a peer has put into this rank's memory, until they are forwarded.
    landed: Element::Bytes(p.op_plan.token_bytes()), [peer: p.topology.peers(), place: p.op_plan.chunks().room_tokens], if p.puts();
    /// The index of a peer's token among the tokens that a rank of this node needs.
    forward_slots: Element::Words(1),
        [peer: p.topology.peers(), local_rank: p.topology.local_world, slot: p.op_plan.shape.max_tokens], if p.forwards();
    /// Counts the ranks of this node for which these indices of a peer's tokens are written, over all calls.
    slots_ready: Element::Flag, [peer: p.topology.peers()], if p.forwards();
    /// The mark of the last call in which a block of a peer's tokens was forwarded.
    forwarded: Element::Flag, [peer: p.topology.peers(), block: p.op_plan.blocks()], if p.op_plan.acknowledges();
    /// The number of puts of a peer that have arrived, as `mk/comm/put.cuh` encodes it.
    arrived: Element::Flag,
        [channel: p.op_plan.chunks().channels(p.op_plan.shape.max_tokens), peer: p.topology.peers()],
        if p.puts();
    /// The routing packets for peers, and the routing packets from peers.
    packets_out: Element::Words(p.packet_words()), [parity: 2u32, peer: p.topology.peers()], if p.puts();
    packets_in: Element::Words(p.packet_words()), [parity: 2u32, peer: p.topology.peers()], if p.puts();
    /// The mark of the last call in which a block of tokens for a peer was packed.
    packed_ready: Element::Flag, [peer: p.topology.peers(), block: p.op_plan.blocks()], if p.puts();
    /// The packed tokens for all peers, from which puts take them.
    outgoing: Element::Bytes(p.op_plan.token_bytes()), [token: p.op_plan.put_tokens(p.topology)], if p.puts();
    /// The mark of the last call in which a warp stored its part of a tile of hidden rows.
    hidden_ready: Element::Flag,
        [row_tile: p.op_plan.row_tiles(p.world()), part: p.op_plan.col_tiles() * u64::from(p.arch().multiplying_warps())],
        if p.op_plan.is_layer();
    /// The rows of `silu(gate) · up`, by expert. Scales of a row lie behind its elements.
    hidden_rows: Element::Bytes(p.op_plan.hidden_row_bytes()), [row: p.op_plan.max_rows], if p.op_plan.is_layer();
    /// Counts the warps of a rank that have stored the places of all rows of its tokens, over all calls.
    placed: Element::Flag, [source: p.world()], if !p.routes();
    /// The rows of a rank.
    rows_of: Element::Words(1), [parity: 2u32, source: p.world()], if !p.routes();
    /// The number of the choice that has a row, below the mark of the last call in which the row had a choice.
    places: Element::LongWords(1), [row: p.op_plan.max_rows], if !p.routes();
    /// Counts the warps of a rank that have returned all of their rows, over all calls.
    returned: Element::Flag, [source: p.world()], if p.op_plan.returns();
    /// The result of the expert of a choice for the token.
    results: Element::Bytes(p.op_plan.result_bytes()), [choice: p.op_plan.shape.max_tokens * p.op_plan.shape.top_k],
        if p.op_plan.returns();
    /// Counts the slices of a tile whose sums a warpgroup has stored. The last slice resets the counter.
    splits_stored: Element::Words(1), [parity: 2u32, tile: p.grid_ctas, group: p.arch().groups],
        if p.op_plan.divides_tiles();
    /// The sums of a CTA over a slice of K.
    split_sums: Element::Floats((p.op_plan.tile.m * p.op_plan.tile.n).into()), [parity: 2u32, slot: p.grid_ctas],
        if p.op_plan.divides_tiles();
}

/// Returns the symmetric memory of a kernel.
pub(super) fn workspace(needs: Needs<'_>) -> Workspace {
    let memory = DispatchWorkspace::new(needs);
    Workspace::new(memory.regions(), memory.bytes)
}

regions! {
    /// The shared memory of a CTA that multiplies. Stages are aligned to 1024 bytes, after which the 128-byte swizzle
    /// repeats.
    pub struct DispatchSmem(p: Needs<'_>), from 0, aligned to 8;

    /// The stages of rows and of weights.
    a: Element::Bytes((p.op_plan.tile.m * LINE_BYTES).into()), [stage: p.op_plan.stages];
    b: Element::Bytes((p.op_plan.tile.n * LINE_BYTES).into()), [stage: p.op_plan.stages];
    /// Rows of C on their way to memory.
    out: Element::Bytes(p.out_bytes()), [warp: p.arch().multiplying_warps()];
    /// The address of a row of the tile in global memory.
    row_address: Element::LongWords(1), [row: p.op_plan.tile.m];
    /// The address of the scales of a row of a tile.
    scales_address: Element::LongWords(1), [buffer: TILE_BUFFERS, row: p.op_plan.tile.m],
        if p.op_plan.token_scales() > 0;
    /// The address to which a row of a tile returns.
    return_address: Element::LongWords(1), [buffer: TILE_BUFFERS, row: p.op_plan.tile.m], if p.op_plan.returns();
    /// The expert, the first row, the number of rows, the column tile and the slice of K of a tile that was taken.
    taken_tile: Element::Words(4), [buffer: TILE_BUFFERS];
    /// The barriers of the two pipelines, and of the slots through which tokens are sent.
    stage_full: Element::Barrier, [stage: p.op_plan.stages];
    stage_empty: Element::Barrier, [stage: p.op_plan.stages];
    tile_full: Element::Barrier, [buffer: TILE_BUFFERS];
    tile_empty: Element::Barrier, [buffer: TILE_BUFFERS];
    copy_loaded: Element::Barrier, [warp: p.arch().warps()], if p.sends();
    /// The first tile and the first row of each of this rank's experts. The last entry is the end.
    tile_begin: Element::Words(1), [expert: p.local_experts() + 1];
    row_begin: Element::Words(1), [expert: p.local_experts() + 1];
    /// An expert's first row from a source: the index among the expert's rows, and in the source's list.
    source_row_begin: Element::Words(1), [expert: p.local_experts(), source: p.world()], if p.routes();
    list_begin: Element::Words(1), [expert: p.local_experts(), source: p.world()], if p.routes();
    /// The tokens that this rank sends to a destination, their rows on a peer's node, and the tokens from a peer.
    tokens_to: Element::Words(1), [destination: p.topology.destinations()], if p.sends();
    rows_at: Element::Words(1), [peer: p.topology.peers()], if p.puts();
    tokens_from: Element::Words(1), [peer: p.topology.peers()], if p.puts();
    /// The index of the first token for a peer among all tokens that are put.
    outgoing_begin: Element::Words(1), [peer: p.topology.peers()], if p.puts();
    /// The first token of a source's segment on this rank. On each rank of this node: the first token of this rank's
    /// segment, and of the segment of each peer whose tokens this rank forwards.
    segment_begin: Element::Words(1), [source: p.world()], if p.puts();
    own_segment: Element::Words(1), [local_rank: p.topology.local_world], if p.puts();
    peer_segment: Element::Words(1), [peer: p.topology.peers(), local_rank: p.topology.local_world], if p.puts();
    /// Whether no wait of routing has failed so far.
    is_routed: Element::Words(1), [], if p.routes();
}

regions! {
    /// Tables of the CTA's slice of tokens while it is routed. Stages take their place later.
    struct RoutingSmem(p: Needs<'_>), from 0, aligned to 16;

    /// While a slice is routed: the expert of a choice, and the choice for which its token is sent to the destination.
    choice_expert: Element::Words(1), [choice: p.op_plan.slice_choices()];
    choice_sender: Element::Words(1), [choice: p.op_plan.slice_choices()];
    /// A choice's index among this rank's rows of the expert, and its token's index among tokens for the destination.
    choice_row: Element::Words(1), [choice: p.op_plan.slice_choices()];
    choice_slot: Element::Words(1), [choice: p.op_plan.slice_choices()];
    /// This rank's rows of an expert and tokens to send for it: in earlier slices, and in all slices.
    slice_rows_before: Element::Words(1), [expert: p.op_plan.shape.experts];
    slice_sent_before: Element::Words(1), [expert: p.op_plan.shape.experts];
    own_rows: Element::Words(1), [expert: p.op_plan.shape.experts];
    own_sent: Element::Words(1), [expert: p.op_plan.shape.experts];
    /// An expert's first row in the list for the destination, and its first token among the tokens for the destination.
    own_list_begin: Element::Words(1), [expert: p.op_plan.shape.experts];
    own_slot_begin: Element::Words(1), [expert: p.op_plan.shape.experts];
    /// An expert's rows from all ranks, its rows from ranks before this rank, and its first row in C.
    expert_rows: Element::Words(1), [expert: p.op_plan.shape.experts];
    expert_rows_before: Element::Words(1), [expert: p.op_plan.shape.experts];
    expert_row_begin: Element::Words(1), [expert: p.op_plan.shape.experts];
    /// All rows of a rank's experts.
    rank_rows: Element::Words(1), [rank: p.world()];
    /// The tokens for which a source has room on a rank of this node.
    segment_tokens: Element::Words(1), [source: p.world(), local_rank: p.topology.local_world], if p.puts();
}

regions! {
    /// The slots through which warps send tokens. Stages take their place later.
    struct CopySmem(p: Needs<'_>), from 0, aligned to 1024;

    /// Tokens on their way to other ranks, before the CTA computes.
    copy_slot: Element::Bytes(SLOT_BYTES.into()), [warp: p.arch().warps()], if p.sends();
}

/// Returns the shared memory of a CTA that multiplies, and its bytes.
pub(super) fn smem(needs: Needs<'_>) -> (Vec<Region>, u32) {
    let memory = DispatchSmem::new(needs);
    (memory.regions(), memory.bytes as u32 + SMEM_ALIGN)
}

/// Returns the regions whose place stages take later.
pub(super) fn smem_before_stages(needs: Needs<'_>) -> Vec<Region> {
    if !needs.routes() {
        return Vec::new();
    }
    let mut regions = RoutingSmem::new(needs).regions();
    regions.extend(CopySmem::new(needs).regions());
    regions
}

/// Returns the bytes of the tables that are needed while a slice is routed.
pub(super) fn routing_bytes(needs: Needs<'_>) -> u64 {
    match needs.routes() {
        true => RoutingSmem::new(needs).bytes,
        false => 0,
    }
}

/// Returns the bytes of the slots through which tokens are sent.
pub(super) fn slot_bytes(needs: Needs<'_>) -> u64 {
    CopySmem::new(needs).bytes
}
