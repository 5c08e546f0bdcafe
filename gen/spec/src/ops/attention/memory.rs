//! Memory of `ring_attention`: symmetric memory of a rank, and shared memory of a CTA.

use super::config::{AttentionConfig, AttentionShape};
use super::op_plan::{
    AttentionPlan, MAX_STAGES, QUERY_BUFFERS, SUB_TILE_BYTES, TILE_ROWS, push_warps, tile_bytes,
};
use crate::device::Device;
use crate::options::SMEM_ALIGN;
use crate::parts::region::regions;
use crate::plan::{Element, Region, Workspace};
use crate::topology::Topology;

/// The plan and the topology on which the memory of a kernel depends.
#[derive(Clone, Copy)]
pub(super) struct Needs<'a> {
    op_plan: &'a AttentionPlan,
    topology: Topology,
}

impl Needs<'_> {
    fn exchanges(&self) -> bool {
        self.topology.world() > 1
    }

    fn takes_rows(&self) -> bool {
        self.op_plan.takes_rows()
    }

    /// Returns whether free slots are known by marks.
    fn marks_turns(&self) -> bool {
        self.exchanges() && self.takes_rows() && self.op_plan.is_ring()
    }
}

regions! {
    /// The symmetric memory of a rank. It is zeroed once and never reset, except for counts within a call. The state
    /// comes first.
    pub struct AttentionWorkspace(p: Needs<'_>), from Workspace::STATE_END_BYTES, aligned to 1024;

    /// Counts the tiles of queries that CTAs have taken. Each call resets the counter of the next call.
    tiles_taken: Element::Words(1), [parity: 2u32];
    /// The mark of the last call that a rank has begun, and the number of its rows, or a hash of its packed lengths, which
    /// must be the same on all ranks.
    begun: Element::Marked, [parity: 2u32, rank: p.topology.world()], for all bodies, if p.takes_rows() && p.exchanges();
    /// Counts the tiles of queries of a reader that have read the keys in a slot, over all calls. `node` is that of the
    /// keys' source.
    slot_reads: Element::Flag,
        [node: p.topology.nodes, reader: p.topology.local_world, slot: p.op_plan.kv_slots],
        if p.topology.local_world > 1 && !p.takes_rows();
    /// Counts the parts of a block of K and V that have arrived from a source, over all calls.
    kv_ready: Element::Flag,
        [source: p.topology.world(), slot: p.op_plan.kv_slots, tile: p.op_plan.key_tiles()],
        if p.exchanges() && !p.takes_rows();
    /// The mark of the last call in which a block of K and V arrived from a source.
    kv_marks: Element::Flag,
        [parity: 2u32, source: p.topology.world(), head: p.op_plan.kv_heads(), tile: p.op_plan.key_tiles()],
        if p.exchanges() && p.takes_rows();
    /// Counts the parts of a block that this rank has sent to ranks of its node in a call. The source of the block has
    /// this local rank on `node`. The last part sets the count to 0.
    parts_sent: Element::Words(1),
        [parity: 2u32, node: p.topology.nodes, head: p.op_plan.kv_heads(), tile: p.op_plan.key_tiles()],
        if p.exchanges() && p.takes_rows();
    /// Counts the tiles of queries that have read a head of a source in a call. The last tile sets the count to 0.
    head_reads: Element::Words(1), [parity: 2u32, source: p.topology.world(), head: p.op_plan.kv_heads()],
        if p.marks_turns();
    /// The mark of the last call in which all tiles of queries of a reader had read a head of this rank.
    head_marks: Element::Flag, [parity: 2u32, reader: p.topology.local_world, head: p.op_plan.kv_heads()],
        if p.marks_turns();
    /// K and V of all ranks. A block is its parts of K and then its parts of V, in the layout of shared memory.
    kv_parts: Element::Bytes(SUB_TILE_BYTES.into()),
        [buffer: p.op_plan.buffers, source: p.topology.world(), slot: p.op_plan.kv_slots, tile: p.op_plan.key_tiles(),
         part: p.op_plan.block_parts()],
        if p.exchanges();
    /// The number of puts of a peer that have arrived, as `mk/comm/put.cuh` encodes it.
    arrived: Element::Flag, [channel: 1u32, peer: p.topology.peers()], if p.topology.peers() > 0;
}

/// The numbers on which the shared memory of a CTA depends.
#[derive(Clone, Copy)]
pub(super) struct Stages {
    /// Bytes of a tile of K, or of V, or of queries.
    tile_bytes: u32,
    /// The most packed sequences; 0 if sequences are not packed.
    sequences: u64,
    /// The batches and ranks with numbers of cached rows; both 0 without cached rows.
    cached: (u64, u32),
    stages: u32,
    push_warps: u32,
    /// Whether warps push beside those that compute.
    pushes_beside: bool,
}

regions! {
    /// The shared memory of a CTA. Tiles are aligned to 1024 bytes, after which the 128-byte swizzle repeats.
    pub struct AttentionSmem(p: Stages), from 0, aligned to 8;

    /// The queries of a tile, and later its rows of O.
    q: Element::Bytes(p.tile_bytes.into()), [buffer: QUERY_BUFFERS];
    /// The stages of K and of V.
    k: Element::Bytes(p.tile_bytes.into()), [stage: p.stages];
    v: Element::Bytes(p.tile_bytes.into()), [stage: p.stages];
    /// A part of a block on its way to other ranks.
    copy_slot: Element::Bytes(SUB_TILE_BYTES.into()), [warp: p.push_warps], if p.pushes_beside;
    /// The barriers of the three pipelines.
    q_full: Element::Barrier, [buffer: QUERY_BUFFERS];
    q_empty: Element::Barrier, [buffer: QUERY_BUFFERS];
    k_full: Element::Barrier, [stage: p.stages];
    k_empty: Element::Barrier, [stage: p.stages];
    v_full: Element::Barrier, [stage: p.stages];
    v_empty: Element::Barrier, [stage: p.stages];
    /// A barrier that completes a phase when a part has been loaded.
    copy_loaded: Element::Barrier, [warp: p.push_warps], if p.push_warps > 0;
    /// The index of the tile whose queries a buffer holds.
    query_tile: Element::Words(1), [buffer: QUERY_BUFFERS];
    /// The rows of a packed sequence over all ranks, and the first packed row that this rank has of the sequence.
    sequence_rows: Element::Words(1), [sequence: p.sequences], if p.sequences > 0;
    sequence_row: Element::Words(1), [sequence: p.sequences], if p.sequences > 0;
    /// The first tile of a packed sequence among each rank's tiles of a head. The last element is the number of tiles.
    sequence_tile: Element::Words(1), [sequence: p.sequences + 1], if p.sequences > 0;
    /// Cached rows of each batch on each rank.
    cached_rows: Element::Words(1), [batch: p.cached.0, source: p.cached.1], if p.cached.0 > 0;
}

regions! {
    /// The shared memory of warps that push before their CTA computes.
    struct PushSmem(push_warps: u32), from 0, aligned to 8;

    /// The part of a block that a warp sends to other ranks, before queries and stages take its place.
    copy_slot: Element::Bytes(SUB_TILE_BYTES.into()), [warp: push_warps];
}

/// Returns the symmetric memory of a kernel.
pub(super) fn workspace(op_plan: &AttentionPlan, topology: Topology) -> Workspace {
    let memory = AttentionWorkspace::of(op_plan, topology);
    Workspace::new(memory.regions(), memory.bytes)
}

/// The shared memory of a CTA that computes, and of a CTA that pushes before it computes.
pub(super) struct Smem {
    pub regions: Vec<Region>,
    pub push_regions: Vec<Region>,
    pub bytes: u32,
}

pub(super) fn smem(op_plan: &AttentionPlan, topology: Topology) -> Smem {
    let push_warps = pushing_warps(op_plan);
    let memory = AttentionSmem::of(op_plan, topology);
    let pushes_before = push_warps > 0 && topology.nodes == 1;
    let push_regions = pushes_before.then(|| PushSmem::new(push_warps).regions());
    Smem {
        regions: memory.regions(),
        push_regions: push_regions.unwrap_or_default(),
        bytes: memory.bytes as u32 + SMEM_ALIGN,
    }
}

impl AttentionWorkspace {
    pub(super) fn of(op_plan: &AttentionPlan, topology: Topology) -> Self {
        Self::new(Needs { op_plan, topology })
    }
}

impl AttentionSmem {
    pub(super) fn of(op_plan: &AttentionPlan, topology: Topology) -> Self {
        Self::new(Stages {
            tile_bytes: op_plan.tile_bytes(),
            sequences: sequences(&op_plan.config, op_plan.shape),
            cached: cached(&op_plan.config, op_plan.shape, topology),
            stages: op_plan.stages,
            push_warps: pushing_warps(op_plan),
            pushes_beside: topology.nodes > 1,
        })
    }
}

/// Returns the number of warps of a CTA that push.
const fn pushing_warps(op_plan: &AttentionPlan) -> u32 {
    match op_plan.push_ctas {
        0 => 0,
        _ => op_plan.push_warps,
    }
}

/// Returns the most packed sequences.
const fn sequences(config: &AttentionConfig, shape: AttentionShape) -> u64 {
    match config.packed {
        true => shape.batch,
        false => 0,
    }
}

/// Returns the batches and the ranks with numbers of cached rows.
fn cached(config: &AttentionConfig, shape: AttentionShape, topology: Topology) -> (u64, u32) {
    match config.cached {
        Some(_) => (shape.batch, topology.world()),
        None => (0, 0),
    }
}

/// Returns the number of stages of K, which is also the number of stages of V, for which shared memory has room. Also
/// returns the bytes that two stages of K and two stages of V need.
pub(super) fn stages(
    config: &AttentionConfig,
    shape: AttentionShape,
    topology: Topology,
    device: &Device,
) -> (u32, u32) {
    let tile_bytes = tile_bytes(config.dtype, shape);
    let bytes = |stages| {
        let memory = AttentionSmem::new(Stages {
            tile_bytes,
            sequences: sequences(config, shape),
            cached: cached(config, shape, topology),
            stages,
            push_warps: push_warps(device.arch.spec(), tile_bytes, stages, topology),
            pushes_beside: topology.nodes > 1,
        });
        memory.bytes as u32 + SMEM_ALIGN
    };
    let most = (0..=MAX_STAGES)
        .rev()
        .find(|stages| bytes(*stages) <= device.smem_bytes);
    (most.unwrap_or(0), bytes(2))
}
const _: () = assert!(SUB_TILE_BYTES.is_multiple_of(SMEM_ALIGN) && TILE_ROWS.is_multiple_of(8));
