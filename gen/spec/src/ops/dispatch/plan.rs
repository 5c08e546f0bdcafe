//! Operators with products of experts. With `dispatch_gemm` and `moe_layer`, tokens go to the ranks of their experts, and each expert
//! multiplies its tokens by its weight.
//!
//! Every CTA counts the top-k entries of a slice of the rank's tokens. From the counts of all slices, each CTA computes
//! where its tokens go. A rank sends to every other rank the number of tokens that it will send for each expert, and
//! the slot of the receive buffer for each row. Then the communication CTAs send each token once to each rank that
//! needs it, in the order of the receiving rank's experts. The other CTAs gather the rows of a tile through that list
//! as they arrive, and communication CTAs join them when they have sent everything. A CTA takes a tile only when its
//! pipeline is about to run empty, so a CTA that waits for rows does not delay other tiles.
//!
//! Counts and lists are double-buffered by parity of the epoch. A rank that starts epoch e has finished e-1, for which
//! it received the counts of every peer, so each peer has finished e-2. Tokens need one buffer, since they are sent
//! only when the receiver's counts of this epoch have arrived, and the receiver has then finished the previous call.
//!
//! `internode` describes several nodes.
//!
//! The experts of `gemm_combine` have their rows before the call. While a rank loads its first tiles, it sends each rank of a row the
//! place to which the result of the row returns (mk/moe/return_places.cuh).

use super::config::{DispatchConfig, DispatchOp, DispatchShape, all_rows};
use super::op_plan::{COPIES_AHEAD, DispatchPlan, InternodeDispatch};
use super::roles::Roles;
use super::{layout, memory, work};
use crate::arch::Tile;
use crate::config::Field;
use crate::config::LINE_BYTES;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::ops::gemm::Split;
use crate::ops::gemm::cost::group_subs;
use crate::parts::{BodyPlan, Launch};
use crate::roofline::Bound;
use crate::topology::Topology;

/// The most stages. The stages of the smallest tile have room for the slots to send from, and more stages are no faster.
const MAX_STAGES: u32 = 8;
/// Communication CTAs; 8 fill the link.
const COMM_CTAS: u32 = 8;
/// The fewest stages of a slice of K, unless the number of slices is given: storing and adding their sums takes as long as a
/// few stages.
const MIN_SPLIT_STEPS: u32 = 8;
/// The most slices of K of a tile of 64 x 128, where the sums of a thread are one sub-tile. For tiles of n sub-tiles, the limit is
/// divided by n, since sub-tiles are added up one after the other (`docs/performance.md#slices-of-experts`).
const MAX_SPLITS: u32 = 16;
/// Tokens under one flag, at most.
const BLOCK_TOKENS: u64 = 8;
/// The fewest columns of a tile.
const MIN_TILE_COLS: u32 = 128;

/// The fastest plan by the cost model.
pub(crate) fn plan(
    config: &DispatchConfig,
    shape: DispatchShape,
    topology: Topology,
    device: &Device,
) -> Result<BodyPlan<DispatchPlan>, Diagnostics> {
    let mut best: Option<(DispatchPlan, f64)> = None;
    let mut refused = Diagnostics::default();
    for &tile in device.arch.spec().tiles {
        let is_out = tile.n < MIN_TILE_COLS
            || config.tile_m.is_some_and(|m| m != tile.m)
            || config.tile_n.is_some_and(|n| n != tile.n)
            || config.swiglu && (tile.m, tile.n) == (64, 128)
            || !config.has_tile(tile)
            || config.split_k.is_some_and(|splits| splits > 1) && !config.divides(tile);
        if is_out {
            continue;
        }
        match candidate(config, shape, topology, device, tile) {
            Ok(op_plan) => {
                let us = work::estimate_us(&op_plan, topology, device);
                if best.as_ref().is_none_or(|(_, best_us)| us < *best_us) {
                    best = Some((op_plan, us));
                }
            }
            Err(found) => refused = found,
        }
    }
    match best {
        Some((op_plan, us)) => Ok(finish(topology, device, op_plan, us)),
        None => Err(refused),
    }
}

fn candidate(
    config: &DispatchConfig,
    shape: DispatchShape,
    topology: Topology,
    device: &Device,
    tile: Tile,
) -> Result<DispatchPlan, Diagnostics> {
    let mut found = Diagnostics::default();
    let usual = COMM_CTAS.min(device.sm_count / 4).max(1);
    let comm_ctas = match topology.world() {
        _ if !config.op.dispatches() => 0,
        1 => 0,
        _ => config.comm_ctas.unwrap_or(usual),
    };
    found.require(
        comm_ctas <= device.sm_count,
        Field::COMM_CTAS,
        || {
            format!(
                "{comm_ctas} communication CTAs are more than {} SMs",
                device.sm_count
            )
        },
        format!("use at most {}", device.sm_count),
    );
    let mut op_plan = with_all_stages(config, shape, topology, device, tile, comm_ctas);
    op_plan.internode = InternodeDispatch::new(&op_plan, topology);
    if let Some(internode) = &op_plan.internode {
        internode.check(&op_plan, &mut found);
    }
    fit_stages(&mut op_plan, topology, device, &mut found);
    found.into_result(op_plan)
}

/// The plan with the largest number of stages, on one node.
fn with_all_stages(
    config: &DispatchConfig,
    shape: DispatchShape,
    topology: Topology,
    device: &Device,
    tile: Tile,
    comm_ctas: u32,
) -> DispatchPlan {
    let world = topology.world();
    let local = shape.experts / u64::from(world);
    let rows = all_rows(world, shape.experts, shape.top_k, shape.max_tokens);
    let workers = u64::from(comm_ctas.max(1) * device.arch.spec().warps());
    let sent = shape.max_tokens * u64::from(topology.destinations() - 1);
    DispatchPlan {
        arch: device.arch,
        config: *config,
        shape,
        tile,
        split: Split::of(tile),
        stages: MAX_STAGES,
        most_splits: most_splits(config, shape, tile),
        comm_ctas,
        max_rows: config.max_rows.map_or(rows, |most| rows.min(most.into())),
        source_rows: shape.max_tokens * shape.top_k.min(local),
        // One block for each warp that sends, if there are few tokens.
        block_tokens: (sent / (2 * workers)).clamp(1, BLOCK_TOKENS) as u32,
        slice_tokens: shape.max_tokens.div_ceil(device.sm_count.into()),
        internode: None,
    }
}

/// The most slices of K into which a tile of the last round is divided. The number of tiles, and so of slices, depends on all
/// tokens.
fn most_splits(config: &DispatchConfig, shape: DispatchShape, tile: Tile) -> u32 {
    let steps = shape.hidden.div_ceil(config.types().tile_k().into()) as u32;
    let divides = config.divides(tile) && config.op == DispatchOp::DispatchGemm;
    let usual = match divides && !config.batch_invariant {
        true => (steps / MIN_SPLIT_STEPS).min(MAX_SPLITS / group_subs(tile)),
        false => 1,
    };
    config.split_k.unwrap_or(usual).clamp(1, steps)
}

/// Takes all stages that fit into shared memory, or records a diagnostic if shared memory is too small.
fn fit_stages(
    op_plan: &mut DispatchPlan,
    topology: Topology,
    device: &Device,
    found: &mut Diagnostics,
) {
    let tile = op_plan.tile;
    let stage_bytes = (tile.m + tile.n) * LINE_BYTES;
    let needs = memory::Needs {
        op_plan,
        topology,
        grid_ctas: device.sm_count,
    };
    let fixed = memory::smem(needs).1 - op_plan.stages * stage_bytes;
    let (routed, slots) = (memory::routing_bytes(needs), memory::slot_bytes(needs));
    let most = device.smem_bytes.saturating_sub(fixed) / stage_bytes;
    op_plan.stages = most.min(MAX_STAGES);
    found.require(
        op_plan.stages > COPIES_AHEAD,
        Field::EXPERTS,
        || {
            format!(
                "tables of {} experts and {} stages of a {}x{} tile need {} bytes of shared memory of {} ({})",
                op_plan.local_experts(topology.world()),
                COPIES_AHEAD + 1,
                tile.m,
                tile.n,
                fixed + (COPIES_AHEAD + 1) * stage_bytes,
                device.smem_bytes,
                device.name
            )
        },
        "use more ranks or fewer experts, or a smaller tile",
    );
    let room = u64::from(op_plan.stages * stage_bytes);
    found.require(
        routed <= room,
        Field::MAX_TOKENS,
        || {
            format!(
                "{} tokens of each of {} CTAs need {routed} bytes of shared memory to be routed, of {room}",
                op_plan.slice_tokens, device.sm_count
            )
        },
        "use fewer tokens per call",
    );
    found.require(
        slots <= room,
        Field::TILE_N,
        || format!("{slots} bytes of slots to send from do not fit into {room} bytes of stages"),
        "use a larger tile",
    );
}

fn finish(
    topology: Topology,
    device: &Device,
    op_plan: DispatchPlan,
    estimate_us: f64,
) -> BodyPlan<DispatchPlan> {
    let world = topology.world();
    let traffic = work::traffic(&op_plan, topology);
    let grid_ctas = device.sm_count;
    let needs = memory::Needs {
        op_plan: &op_plan,
        topology,
        grid_ctas,
    };
    let (smem, smem_bytes) = memory::smem(needs);
    let roles = Roles::new(needs);
    let arch = device.arch.spec();
    let producer_registers = match op_plan.promotes() {
        true => arch.producers.dispatch_promoting,
        false => arch.producers.dispatch,
    };
    BodyPlan {
        id: layout::id(&op_plan, device.arch, topology),
        launch: Launch {
            threads: arch.threads(),
            grid_ctas,
            cluster_ctas: 1,
            registers: arch.split_registers(producer_registers),
        },
        roles: roles.all(),
        call: roles.call_steps(),
        smem,
        comm_smem: memory::smem_before_stages(needs),
        smem_bytes,
        workspace: memory::workspace(needs),
        copies: None,
        network: op_plan
            .internode
            .as_ref()
            .map(|internode| internode.network(&op_plan)),
        operands: layout::operands(&op_plan, world),
        args: layout::args(&op_plan, topology),
        bound: Bound::new(&traffic, device),
        traffic,
        estimate_us,
        op_plan,
    }
}
