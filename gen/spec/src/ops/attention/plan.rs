//! `ring_attention`: exact attention over a sequence whose rows are divided among ranks.
//!
//! A CTA takes a tile of queries of one head and iterates over the keys of all ranks, beginning with the keys of its own rank.
//! Under a causal mask, the keys of the tile's own rows come last. The state of the softmax stays in registers. Each rank's K
//! and V travel head by head to the peers that need them, in the layout that shared memory will have. Each tile of keys has a
//! flag.
//!
//! K and V arrive in slots. A slot holds K and V of one head of one source. Head n uses slot n mod `kv_slots`. Its
//! predecessor in the slot is a head of this call or of the previous call. When a tile of queries has attended to the
//! keys of a head, the tile releases the slot to the source. A source overwrites a slot on a peer once all tiles of
//! queries of that peer have released the slot. If all heads have slots, releases only order calls; such a plan is
//! called *gathered*. With fewer slots the memory is bounded; such a plan is called a *ring*. Both plans compute equal
//! bits.
//!
//! Across nodes, a rank also copies its own K and V to its own slots. From these slots, K and V are put to the slots of
//! the ranks with this rank's local rank on the other nodes, several tiles of a head at a time. The receiving rank
//! raises the flags in place of the source and forwards the tiles to the peers of its node that need them. Those peers
//! release their slots to the rank that forwards, not to the source. No credits cross between nodes, because all heads
//! have slots for two calls, and calls alternate between the two sets. A rank that starts call e + 2 has received all
//! puts of call e + 1 from its peers on other nodes, so these peers have finished call e and no longer read its keys of
//! that call. All CTAs compute. In some CTAs, one warp sends own parts of keys and forwards parts of other nodes at the
//! same time.
//!
//! If each call gives the length of the sequence, the memory is laid out for the longest sequence, and not every call
//! writes every flag. Flags then hold marks, and each rank announces the begin of a call to the other ranks, as
//! `docs/decisions/0012-rows-at-run-time.md` describes.
//!
//! Each packed sequence is divided among the ranks like a single sequence. Tiles of queries and tiles of keys begin with
//! the first row of a chunk of a sequence, and are numbered through all sequences, equally on all ranks.

use super::config::{AttentionConfig, AttentionShape};
use super::op_plan::{AttentionPlan, Tiles, grid_ctas, push_warps, tile_bytes};
use super::roles::Roles;
use super::{cost, layout, memory, push, slots, work};
use crate::config::Field;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::parts::network::PUT_BYTES;
use crate::parts::{BodyPlan, Launch, Network};
use crate::roofline::Bound;
use crate::topology::Topology;

/// The plan.
pub(crate) fn plan(
    config: &AttentionConfig,
    shape: AttentionShape,
    topology: Topology,
    device: &Device,
) -> Result<BodyPlan<AttentionPlan>, Diagnostics> {
    let op_plan = op_plan(config, shape, topology, device)?;
    Ok(finish(topology, device, op_plan))
}

fn op_plan(
    config: &AttentionConfig,
    shape: AttentionShape,
    topology: Topology,
    device: &Device,
) -> Result<AttentionPlan, Diagnostics> {
    let mut found = Diagnostics::default();
    let world = topology.world();
    let tiles = Tiles::new(config, shape, world);
    let limit = u64::from(u32::MAX) / u64::from(world) / 4;
    found.require(
        tiles.all <= limit,
        Field::SEQ,
        || {
            format!(
                "{} tiles of queries on a rank are more than {limit}",
                tiles.all
            )
        },
        "split the batch",
    );
    let tile_bytes = tile_bytes(config.dtype, shape);
    let (stages, least_bytes) = memory::stages(config, shape, topology, device);
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
        arch: device.arch,
        config: *config,
        shape,
        segment_rows: tiles.segment_rows as u32,
        segment_tiles: tiles.of_segment as u32,
        row_tiles: tiles.of_head as u32,
        tiles: tiles.all as u32,
        group_heads: group_heads(config, tiles, device),
        stages,
        push_ctas: 0,
        push_warps: push_warps(device.arch.spec(), tile_bytes, stages, topology),
        kv_slots: 0,
        buffers: topology.nodes.min(2),
        put_tiles: 0,
    };
    if topology.nodes > 1 {
        op_plan.put_tiles = (PUT_BYTES / (2 * tile_bytes)).clamp(1, op_plan.segment_tiles);
    }
    if world > 1 {
        slots::choose(&mut op_plan, topology, device, &mut found);
        push::choose(&mut op_plan, topology, device);
    }
    found.into_result(op_plan)
}

/// Without a mask all tiles take equally long, and K and V arrive head by head. With a mask, enough heads for all CTAs
/// are computed at the same time, so that all CTAs end with short tiles.
fn group_heads(config: &AttentionConfig, tiles: Tiles, device: &Device) -> u32 {
    if !config.causal {
        return 1;
    }
    let heads = u64::from(device.sm_count).div_ceil(tiles.of_head);
    let (of_q, of_kv) = (config.heads.fixed(), config.kv_heads.fixed());
    let per_kv = of_q.unwrap_or(1) / of_kv.unwrap_or(1);
    heads.max(per_kv).min(tiles.heads) as u32
}

fn finish(topology: Topology, device: &Device, op_plan: AttentionPlan) -> BodyPlan<AttentionPlan> {
    let world = topology.world();
    let traffic = work::traffic(&op_plan, topology);
    let smem = memory::smem(&op_plan, topology);
    let grid_ctas = grid_ctas(&op_plan, world, device);
    let roles = Roles::new(&op_plan, topology);
    let arch = device.arch.spec();
    let producer_registers = match op_plan.takes_rows() {
        true => arch.producers.attention_with_rows,
        false => arch.producers.attention,
    };
    BodyPlan {
        id: layout::id(&op_plan, device.arch, topology),
        launch: Launch {
            threads: arch.threads(),
            grid_ctas,
            cluster_ctas: 1,
            registers: arch.split_registers(producer_registers),
        },
        roles: roles.all(grid_ctas),
        call: roles.call_steps(),
        smem: smem.regions,
        comm_smem: smem.push_regions,
        smem_bytes: smem.bytes,
        workspace: memory::workspace(&op_plan, topology),
        copies: None,
        network: network(&op_plan),
        operands: layout::operands(&op_plan, world),
        args: layout::args(&op_plan, topology),
        bound: Bound::new(&traffic, device),
        estimate_us: cost::attention_us(&op_plan, world, &traffic, device),
        traffic,
        op_plan,
    }
}

/// The puts that the kernel needs across nodes: each tile of K and V that another node needs crosses to it once.
fn network(op_plan: &AttentionPlan) -> Option<Network> {
    (op_plan.put_tiles > 0).then(|| Network {
        channels: 1,
        puts: op_plan.kv_heads() as u32 * op_plan.head_puts() + u32::from(op_plan.takes_rows()),
        put_bytes: u64::from(op_plan.put_tiles) * 2 * u64::from(op_plan.tile_bytes()),
    })
}
