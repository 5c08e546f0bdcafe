//! `ring_attention`: exact attention over a sequence whose rows are spread over ranks.
//!
//! A CTA takes a tile of queries of one head and walks over the keys of all ranks, its own rank's first, with what it has
//! of the softmax in registers. Each rank's K and V travel to the peers that need them head by head, as the tiles that
//! shared memory shall hold, a flag behind each tile of keys.
//!
//! They arrive in slots, each for the K and V of a head of one source. Head n has slot n mod `kv_slots`, after the head
//! that had it before, in this call or the last one: every tile of queries that has met the keys of a head tells all
//! sources so, and who has heard of all tiles of a peer may overwrite the slot there. With as many slots as heads this only
//! orders calls (the *gathered* plan); with fewer, memory is bounded (the *ring* plan). Both compute the same bits.
//!
//! Across nodes, own K and V also go to the rank's own slots, from where they are put to those of the ranks of its number on
//! the other nodes, some tiles of a head at a time. Each of these raises its flags as if the source had, and relays them to
//! the peers of its node that need them; a peer tells who relays that it has met keys, not the source. No credits cross
//! between nodes: all heads have slots, twice, and calls take turns in them. A rank that starts call e + 2 has seen all
//! puts of e + 1 from its peers on other nodes, so these have finished e, with all that they read of its keys then. All CTAs
//! compute: a warp of some of them sends own parts of keys, and relays others', meanwhile.

use super::config::{AttentionConfig, AttentionShape};
use super::op_plan::{AttentionPlan, TILE_ROWS, grid_ctas, push_warps, tile_bytes};
use super::{cost, layout, memory, push, slots, work};
use crate::config::Field;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::ops::gemm::THREADS;
use crate::plan::network::PUT_BYTES;
use crate::plan::{KernelPlan, Network, OpPlan, Registers};
use crate::roofline::Bound;
use crate::spec::KernelSpec;

/// Scores, sums and weights of a warpgroup's 64 x 128 take 160 registers of each thread at once, and 24 more are enough;
/// movers need more than 56 where they push and have many cases to tell apart.
const REGISTERS: Registers = Registers {
    entry: 168,
    mover: 72,
    math: 216,
};

/// The plan; none while a size is not known.
pub(crate) fn plan(
    spec: &KernelSpec,
    config: &AttentionConfig,
    device: &Device,
) -> Option<Result<KernelPlan, Diagnostics>> {
    let shape = config.shape()?;
    Some(op_plan(spec, config, shape, device).map(|op_plan| finish(spec, device, op_plan)))
}

fn op_plan(
    spec: &KernelSpec,
    config: &AttentionConfig,
    shape: AttentionShape,
    device: &Device,
) -> Result<AttentionPlan, Diagnostics> {
    let mut found = Diagnostics::default();
    let (world, topology) = (spec.world(), spec.topology());
    let segment_rows = shape.chunk_rows(world, config.placement);
    let segment_tiles = segment_rows.div_ceil(u64::from(TILE_ROWS));
    let row_tiles = segment_tiles * u64::from(config.placement.segments());
    let tiles = shape.batch * shape.heads * row_tiles;
    let limit = u64::from(u32::MAX) / u64::from(spec.world()) / 4;
    found.require(
        tiles <= limit,
        Field::SEQ,
        || format!("{tiles} tiles of queries on a rank are more than {limit}"),
        "split the batch",
    );
    let stage_bytes = 2 * tile_bytes(shape);
    let (stages, least_bytes) = memory::stages(shape, topology, device.smem_bytes);
    found.require(
        stages >= 2,
        Field::HEAD_DIM,
        || {
            format!(
                "two stages of K and V need {least_bytes} bytes of shared memory of {} ({})",
                device.smem_bytes, device.name
            )
        },
        "use smaller heads",
    );
    let mut op_plan = AttentionPlan {
        config: *config,
        shape,
        segment_rows: segment_rows as u32,
        segment_tiles: segment_tiles as u32,
        row_tiles: row_tiles as u32,
        tiles: tiles as u32,
        group_heads: group_heads(config, shape, row_tiles, device),
        stages,
        push_ctas: 0,
        push_warps: push_warps(shape, stages, topology),
        kv_slots: 0,
        buffers: topology.nodes.min(2),
        put_tiles: 0,
    };
    if topology.nodes > 1 {
        op_plan.put_tiles = (PUT_BYTES / stage_bytes).clamp(1, op_plan.segment_tiles);
    }
    if world > 1 {
        slots::choose(&mut op_plan, topology, device, &mut found);
        push::choose(&mut op_plan, topology, device);
    }
    found.into_result(op_plan)
}

/// Without a mask all tiles are as long, and K and V come head by head. With one, enough heads for all CTAs at once, so
/// that all end with short tiles.
fn group_heads(
    config: &AttentionConfig,
    shape: AttentionShape,
    row_tiles: u64,
    device: &Device,
) -> u32 {
    if !config.causal {
        return 1;
    }
    let heads = u64::from(device.sm_count).div_ceil(row_tiles);
    let per_kv = shape.heads / shape.kv_heads;
    heads.max(per_kv).min(shape.batch * shape.heads) as u32
}

fn finish(spec: &KernelSpec, device: &Device, op_plan: AttentionPlan) -> KernelPlan {
    let (world, topology) = (spec.world(), spec.topology());
    let traffic = work::traffic(&op_plan, topology);
    let smem = memory::smem(&op_plan, topology);
    let grid_ctas = grid_ctas(&op_plan, world, device);
    KernelPlan {
        id: layout::id(&op_plan, topology),
        spec: spec.clone(),
        device: device.clone(),
        threads: THREADS,
        grid_ctas,
        roles: layout::roles(&op_plan, grid_ctas),
        smem: smem.regions,
        comm_smem: smem.push_regions,
        smem_bytes: smem.bytes,
        workspace: memory::workspace(&op_plan, topology),
        copies: None,
        network: network(&op_plan),
        operands: layout::operands(&op_plan, world),
        args: layout::args(&op_plan, topology),
        registers: REGISTERS,
        bound: Bound::new(&traffic, device),
        estimate_us: cost::attention_us(&op_plan, world, &traffic, device),
        traffic,
        op_plan: OpPlan::Attention(op_plan),
    }
}

/// What the kernel wants of the fabric, across nodes: each tile of K and V that another node needs crosses to it once.
fn network(op_plan: &AttentionPlan) -> Option<Network> {
    (op_plan.put_tiles > 0).then(|| Network {
        channels: 1,
        puts: op_plan.kv_heads() as u32
            * op_plan.config.placement.segments()
            * op_plan.segment_puts(),
        put_bytes: u64::from(op_plan.put_tiles) * 2 * u64::from(op_plan.tile_bytes()),
    })
}
