//! `gemm_rs` and `gemm_ar`: C = Σ_r A_r · B_r.
//!
//! Every rank computes every tile. With two shots, each tile has an owner. The other ranks send their partial sums of
//! the tile to the owner's slot in the type of A. The owner loads them through the same pipeline of stages as A and B, after the
//! tile's own stages, and adds them to its sums in fp32. In `gemm_rs`, a rank owns the tiles of its rows. In `gemm_ar`,
//! ranks own tiles in turn and send the results to all ranks. With one shot, which is for few rows, every rank sends
//! its partial sums from registers to all ranks that need them, where they are added up in registers. If fewer bytes
//! are sent this way, each row goes to one rank instead, which forwards the sum to all.
//!
//! Partial sums travel in the type of A, and results in the type of C. The rank that adds up a part of C applies the epilogue to
//! it. One rank has all sums itself, so that its kernel is a plain GEMM, which stores C from registers if it normalises rows.
//!
//! Slots are double-buffered by parity of the epoch. A rank that starts epoch e has finished e-1, for which every rank
//! that it sends to had started e-1 and thus finished e-2, the last reader of the slots that e writes. A rank that owns
//! no tile receives no partial sums, so it waits for a signal of the owners instead.
//!
//! Across nodes, the rank with the owner's local rank adds up a tile on each node. These sums are put to the owner in
//! the type of A, and the owner adds them to the sum of its own node, in the order of nodes. So there is one transfer for each
//! tile and pair of nodes. Tiles owned by other nodes come first and tiles of the own node last, so that a node posts all its
//! puts before it waits for another node. Results are put to the owner's peers, which forward them within their
//! nodes. Every rank waits for all puts of its peers, so the argument about slots also holds for the buffers that puts
//! write and read.

mod candidate;
pub(super) mod internode;
mod layout;
mod traffic;

use super::config::GemmOp;
use super::core::{self, CoreLayout};
use super::memory::{self, Needs};
use super::op_plan::{GemmPlan, Reduction, SLOT_BYTES, TileOrder};
use super::operands;
use super::roles::Roles;
use super::smem;
use super::spec::GemmSpec;
use crate::arch::Arch;
use crate::config::Field;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::parts::{BodyPlan, Launch};
use crate::roofline::Bound;
use candidate::{Candidate, ROUND_BYTES_OF_RESULTS, candidate, collect_unroll, partial_subs};
use layout::{args, c_rows};
use traffic::traffic;

/// The bytes of an owner's partial sums in a round. With fewer, own tiles wait for partial sums. With more, the link is
/// idle at the end.
const ROUND_BYTES: u32 = 1 << 20;
/// Row tiles that share B tiles in L2. In a round, this many row tiles of every owner advance together.
const GROUP_M: u32 = 8;
/// The most columns of a consumer warpgroup with one shot.
const ONE_SHOT_COLS: u32 = 128;
/// The packets of a lane in eight rows of a sub-tile.
const PACKETS: u32 = 4;
/// The packets of all ranks that fit into the registers of a lane.
const MAX_PACKETS_IN_FLIGHT: u32 = 16;

/// The fastest plan by the cost model.
pub(super) fn plan(spec: GemmSpec<'_>, device: &Device) -> Result<BodyPlan<GemmPlan>, Diagnostics> {
    let mut rejected = Diagnostics::default();
    let mut best: Option<Candidate> = None;
    for tile in core::candidate_tiles(spec, device.arch) {
        match CoreLayout::new(spec, tile, None, device) {
            Ok(core) => {
                let found = candidates(spec, device, &core);
                if found.is_empty() {
                    rejected = why_none(spec, device, &core);
                }
                for candidate in found {
                    if best
                        .as_ref()
                        .is_none_or(|b| candidate.estimate_us < b.estimate_us)
                    {
                        best = Some(candidate);
                    }
                }
            }
            Err(diagnostics) => rejected = diagnostics,
        }
    }
    match best {
        Some(candidate) => Ok(finish(spec, device, candidate)),
        None => Err(rejected),
    }
}

/// The reasons why a tile has no candidate.
fn why_none(spec: GemmSpec<'_>, device: &Device, core: &CoreLayout) -> Diagnostics {
    let mut found = Diagnostics::default();
    let tile = core.tile;
    if spec.crosses_nodes() && device.sm_count == 1 {
        found.push(
            Field::NODES,
            format!(
                "across nodes some SMs send while others compute, and {} has 1 SM",
                device.name
            ),
            "use a GPU with 2 SMs or more",
        );
        return found;
    }
    if spec.crosses_nodes() {
        found.push(
            Field::COMM_CTAS,
            format!(
                "CTAs that communicate are fewer than the {} SMs, and forward through {} bytes of shared memory, which {} \
                 stages of a {}x{} tile and the output must take",
                device.sm_count,
                core.arch.warps() * SLOT_BYTES,
                core.stages,
                tile.m,
                tile.n
            ),
            "use fewer CTAs that communicate, more stages or a larger tile",
        );
        return found;
    }
    found.push(
        Field::SHOTS,
        format!(
            "one shot takes words of all ranks to registers, of which the sums of a {}x{} tile leave too few",
            tile.m, tile.n
        ),
        match spec.epilogue().normalises() {
            true => "use tile_m = 64 or tile_n = 128 or less",
            false => "use tile_m = 64, tile_n = 128 or less, or shots = 2",
        },
    );
    found
}

fn candidates(spec: GemmSpec<'_>, device: &Device, core: &CoreLayout) -> Vec<Candidate> {
    let (tuning, tile) = (spec.tuning(), core.tile);
    let rows = |rows: u64| rows.div_ceil(u64::from(tile.m)) as u32;
    let col_tiles = spec.shape.n.div_ceil(u64::from(tile.n)) as u32;
    let order = TileOrder {
        row_tiles: rows(spec.shape.m),
        col_tiles,
        group_m: tuning.group_m.unwrap_or(GROUP_M),
        shard_row_tiles: None,
        slots: rows(spec.shape.m) * col_tiles,
        whole_tiles: 0,
        tail_splits: 1,
        pace_steps: 0,
    };
    // A kernel that normalises rows keeps each lane's elements of the rows in registers.
    let fits = core.group_n() <= ONE_SHOT_COLS;
    if spec.world() == 1 {
        if spec.epilogue().normalises() && !fits {
            // A tile that many ranks may have is possible on one: rows go through slots.
            return match (tuning.tile_m, tuning.tile_n) {
                (Some(_), Some(_)) => two_shots(spec, device, core, order, 1),
                _ => Vec::new(),
            };
        }
        let orders = core.complete(spec, order, device.sm_count);
        let alone = |order| candidate(spec, device, core, order, None);
        return orders.into_iter().map(alone).collect();
    }
    let mut found = Vec::new();
    // The ranks of a reduce-scatter normalise rows behind two shots only.
    let scatters_norms = spec.op() == GemmOp::GemmRs && spec.epilogue().normalises();
    let may = tuning.shots != Some(2)
        && tuning.round_tiles.is_none()
        && !spec.crosses_nodes()
        && !scatters_norms;
    // Ranks that have rows of C. If a call has fewer than the most rows, the shards are smaller and more ranks may have rows.
    let owners = match spec.op() {
        GemmOp::GemmRs if !spec.takes_rows() => spec.shape.m.div_ceil(spec.shard_rows()) as u32,
        _ => spec.world(),
    };
    if may && fits {
        for order in core.complete(spec, order.clone(), device.sm_count) {
            found.extend(one_shot(spec, device, core, &order, owners));
        }
    }
    // Warps that multiply and then normalise would keep the rows of the call in registers beside their sums, and spill some.
    let would_spill = spec.takes_rows() && spec.epilogue().normalises();
    let asks = tuning.shots == Some(2) || tuning.round_tiles.is_some();
    if tuning.shots == Some(1) || would_spill && !asks && !found.is_empty() {
        return found;
    }
    if spec.crosses_nodes() {
        return internode::candidates(spec, device, core, order);
    }
    found.extend(two_shots(spec, device, core, order, owners));
    found
}

/// Candidates in which ranks exchange packets, and each rank adds up the rows that it needs.
fn one_shot(
    spec: GemmSpec<'_>,
    device: &Device,
    core: &CoreLayout,
    order: &TileOrder,
    owners: u32,
) -> Vec<Candidate> {
    // Either all rows go to all ranks, or each row goes to one rank and its sum to all ranks, in words of two elements.
    let forwards = spec.op() == GemmOp::GemmAr && spec.types().c == spec.types().partial;
    let with_forwarding: &[bool] = if forwards { &[false, true] } else { &[false] };
    let with_results = |results: &bool| {
        let reduction = Reduction {
            shots: 1,
            owners,
            owner_tiles: order.slots,
            round_tiles: order.slots,
            shard_tiles: order.slots,
            put_tiles: 0,
            partial_subs: 0,
            packets_in_flight: (MAX_PACKETS_IN_FLIGHT / spec.world()).min(PACKETS),
            results: *results,
            on_peers: false,
            collect_unroll: 0,
        };
        candidate(spec, device, core, order.clone(), Some(reduction))
    };
    with_forwarding.iter().map(with_results).collect()
}

/// Candidates in which the owner of a tile adds it up, with several lengths of a round.
fn two_shots(
    spec: GemmSpec<'_>,
    device: &Device,
    core: &CoreLayout,
    mut order: TileOrder,
    owners: u32,
) -> Vec<Candidate> {
    let (tuning, tile) = (spec.tuning(), core.tile);
    let (owners, owner_tiles) = if spec.op() == GemmOp::GemmRs {
        let shard_row_tiles = spec.shard_rows().div_ceil(u64::from(tile.m)) as u32;
        order.shard_row_tiles = Some(shard_row_tiles);
        order.row_tiles = owners * shard_row_tiles;
        (owners, shard_row_tiles * order.col_tiles)
    } else {
        let owners = spec.world().min(order.slots);
        (owners, order.slots.div_ceil(owners))
    };
    order.slots = owners * owner_tiles;
    let orders = core.complete(spec, order, device.sm_count);
    let pace_steps = orders.first().map_or(0, |order| order.pace_steps);
    let tile_bytes = tile.m * tile.n * spec.types().partial.bytes() as u32;
    let rounds_of = |bytes: u32| bytes / tile_bytes;
    let rounds = match (tuning.round_tiles, spec.op()) {
        _ if owners == 1 => vec![u32::MAX],
        (Some(tiles), _) => vec![tiles],
        // CTAs that keep pace must not wait for partial sums of own tiles, so these come from the previous round.
        _ if pace_steps > 0 => vec![device.sm_count.div_ceil(owners)],
        (None, GemmOp::GemmRs) => vec![rounds_of(ROUND_BYTES), u32::MAX],
        (None, _) => vec![rounds_of(ROUND_BYTES_OF_RESULTS)],
    };
    let with_rounds = |order: &TileOrder, round_tiles: u32| {
        let reduction = Reduction {
            shots: 2,
            owners,
            owner_tiles,
            round_tiles: round_tiles.min(owner_tiles),
            shard_tiles: owner_tiles,
            put_tiles: 0,
            partial_subs: partial_subs(spec, core, order),
            packets_in_flight: 0,
            results: spec.op() == GemmOp::GemmAr,
            on_peers: spec.config.symmetric_result,
            collect_unroll: collect_unroll(spec, spec.config.symmetric_result),
        };
        candidate(spec, device, core, order.clone(), Some(reduction))
    };
    let of_order = |order| rounds.iter().map(move |tiles| with_rounds(order, *tiles));
    orders.iter().flat_map(of_order).collect()
}

fn finish(spec: GemmSpec<'_>, device: &Device, candidate: Candidate) -> BodyPlan<GemmPlan> {
    let Candidate {
        core,
        order,
        reduction,
        comm_ctas,
        estimate_us,
    } = candidate;
    let needs = Needs {
        spec,
        core: &core,
        order: &order,
        compute_ctas: device.sm_count - comm_ctas,
        chunks: None,
        reduction: reduction.as_ref(),
    };
    let workspace = memory::workspace(&needs);
    let collects = reduction
        .as_ref()
        .is_some_and(|r| r.shots == 2 && (r.results || r.collect_unroll > 0));
    let grid_ctas = if collects || spec.takes_rows() {
        device.sm_count // a warp of every CTA takes results to C
    } else {
        comm_ctas + order.work_tiles().min(device.sm_count - comm_ctas)
    };
    let (roles, call) = Roles::new(&needs, comm_ctas, grid_ctas).reducing();
    let (least, sums) = (traffic::least(spec), reduction.as_ref());
    let in_shards = order.shard_row_tiles.is_some();
    let op_plan = GemmPlan {
        load_rows_a: layout::rows_of_a(spec, core.tile, in_shards),
        comm_ctas,
        reduction: reduction.clone(),
        ..core.plan(spec, order)
    };
    BodyPlan {
        id: id(spec, device.arch, &core, reduction.as_ref()),
        launch: Launch {
            threads: core.arch.threads(),
            grid_ctas,
            cluster_ctas: core.cluster.map_or(1, |cluster| cluster.ctas),
            registers: core::registers(spec, device.arch, op_plan.normalises_tiles()),
        },
        roles,
        call,
        operands: operands::operands(spec, spec.all_rows(), c_rows(spec)),
        args: args(spec, &core, in_shards, reduction.as_ref()),
        smem: core.smem,
        comm_smem: smem::comm_smem(core.arch, comm_ctas > 0 && collects),
        smem_bytes: core.smem_bytes,
        workspace,
        copies: None,
        network: sums
            .filter(|r| r.put_tiles > 0)
            .map(|r| internode::network(spec, core.tile, r)),
        bound: Bound::new(&least, device),
        traffic: sums.map_or(least, |r| traffic(spec, r.results)),
        estimate_us,
        op_plan,
    }
}

fn id(spec: GemmSpec<'_>, arch: Arch, core: &CoreLayout, reduction: Option<&Reduction>) -> String {
    let (tile, stages) = (core.tile, core.stages);
    let how = match reduction {
        Some(r) if r.shots == 1 && r.results => "_relay".to_owned(),
        Some(r) if r.shots == 1 => "_oneshot".to_owned(),
        Some(r) if r.on_peers => format!("_rounds{}_symmetric", r.round_tiles),
        Some(r) => format!("_rounds{}", r.round_tiles),
        None => String::new(),
    };
    format!(
        "{}_{}_t{}x{}s{stages}{how}{}",
        spec.id(arch),
        spec.b_layout(),
        tile.m,
        tile.n,
        spec.config.suffix(),
    )
}
