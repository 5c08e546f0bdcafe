//! `gemm_rs` and `gemm_ar`: C = Σ_r A_r · B_r.
//!
//! Every rank computes every tile. In two shots a tile has an owner, to whose slot the others send their part of it, as
//! bf16; the owner brings these through the ring of stages behind the tile's own, and adds them to its sums in fp32.
//! `gemm_rs`: a rank owns the tiles of its rows. `gemm_ar`: ranks own tiles in turn, and send the results on. In one
//! shot (few rows) every rank sends its part to all who need it, from registers to registers, where they are added up; or
//! of each row to one rank, which relays the sum to all, where that is less to send.
//!
//! Parts of a sum travel as bf16, and results as what C is. Who adds up a part of C applies the epilogue to it.
//!
//! Slots are double-buffered by epoch: a rank that starts epoch e has finished e-1, for which it needed every rank that
//! it sends to to have started e-1 and so to have finished e-2, the last reader of the slots that e writes. A rank that
//! owns nothing waits for the owners' word instead.
//!
//! Across nodes, a tile is added up on each node by the rank with the owner's number; these sums, as bf16, are put to the
//! owner, who adds them to its own node's, in the order of nodes: one transfer per pair of nodes and tile. Tiles of other
//! nodes' owners come first, those of the own node last, so that no node waits for another before all its puts are posted.
//! Results are put to the owner's peers and relayed by them. Every rank waits for all puts of its peers, so what was said
//! of slots holds for those that puts write, and for those that they are taken from.

use super::core::{self, CoreLayout, TILE_K};
use super::{
    GemmPlan, GemmSpec, KernelPlan, Network, Reduction, Role, SLOT_BYTES, THREADS, TileOrder,
    Traffic, Workspace,
};
use crate::abi::{ArgKind, ArgLayout, Extent, FLAG_STRIDE_BYTES, Operand};
use crate::config::{Dtype, GemmOp, GemmShape, Tile};
use crate::cost::{self, Bound, Meeting};
use crate::device::Device;
use crate::plan::Body;
use crate::violation::{Field, Violations};

const ELEM_BYTES: u64 = 2;
/// Row tiles that share B tiles in L2. In a round, as many of every owner advance together.
const GROUP_M: u32 = 8;
/// Partial sums of an owner's tiles in a round: with fewer, own tiles wait; with more, the link does at the end.
const ROUND_BYTES: u32 = 1 << 20;
/// The same where results follow.
const ROUND_BYTES_OF_RESULTS: u32 = 1 << 19;
/// About what a put has, at most …
const PUT_BYTES: u32 = 1 << 20;
/// … where that makes so many of a rank's tiles, over all peers.
const PUTS: u32 = 8;
/// More CTAs that communicate get into each other's way.
const MAX_COMM_CTAS: u32 = 16;
/// Columns of a math warpgroup, at most, with one shot.
const ONE_SHOT_COLS: u32 = 128;
/// Bytes of a sub-tile of 64 x 64.
const SUB_BYTES: u32 = 8192;

/// One way to do it; the cost model chooses among them.
struct Candidate {
    core: CoreLayout,
    order: TileOrder,
    reduction: Option<Reduction>,
    comm_ctas: u32,
    estimate_us: f64,
}

/// The fastest plan by the cost model.
pub(super) fn plan(spec: GemmSpec<'_>, device: &Device) -> Result<KernelPlan, Violations> {
    let mut rejected = Violations::default();
    let mut best: Option<Candidate> = None;
    for tile in core::candidate_tiles(spec.tuning()) {
        match CoreLayout::new(tile, spec.tuning(), device) {
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
            Err(violations) => rejected = violations,
        }
    }
    match best {
        Some(candidate) => Ok(finish(spec, device, candidate)),
        None => Err(rejected),
    }
}

/// Why a tile has no candidate.
fn why_none(spec: GemmSpec<'_>, device: &Device, core: &CoreLayout) -> Violations {
    let mut found = Violations::default();
    let tile = core.tile;
    if spec.crosses_nodes() {
        found.push(
            Field::CommCtas,
            format!(
                "CTAs that communicate are fewer than the {} SMs, and relay through {} bytes of shared memory, which {} stages \
                 of a {}x{} tile and the output must take",
                device.sm_count,
                THREADS / 32 * SLOT_BYTES,
                core.stages,
                tile.m,
                tile.n
            ),
            "use fewer CTAs that communicate, more stages or a larger tile",
        );
        return found;
    }
    found.push(
        Field::Shots,
        format!(
            "one shot takes words of all ranks to registers, of which the sums of a {}x{} tile leave too few",
            tile.m, tile.n
        ),
        "use tile_m = 64, tile_n = 128 or less, or shots = 2",
    );
    found
}

/// Bytes of one call. With `tags`, every other word is one; `results`: sums travel too.
fn traffic(spec: GemmSpec<'_>, tags: bool, results: bool) -> Traffic {
    let GemmShape { m, n, k } = spec.shape;
    if spec.crosses_nodes() {
        return traffic_across(spec, results);
    }
    let peers = u64::from(spec.world() - 1);
    let (row_bytes, result_row_bytes) = (n * ELEM_BYTES, n * spec.epilogue().output.bytes());
    let parts = (peers * spec.shard_rows()).min(m) * row_bytes;
    let (sent_bytes, c_rows) = match (spec.op(), results) {
        (GemmOp::GemmRs, _) => (parts, spec.shard_rows()),
        (_, true) => (peers * m * (row_bytes + result_row_bytes) / (peers + 1), m),
        (_, false) => (peers * m * row_bytes, m),
    };
    Traffic {
        nic_bytes: 0,
        link_bytes: if tags { 2 * sent_bytes } else { sent_bytes },
        memory_bytes: core::memory_bytes(spec, c_rows),
        flops: 2 * m * n * k,
    }
}

/// The same of several nodes: parts and results inside a node, sums and results between nodes.
fn traffic_across(spec: GemmSpec<'_>, results: bool) -> Traffic {
    let GemmShape { m, n, k } = spec.shape;
    let topology = spec.topology();
    let (local_peers, peers) = (
        u64::from(topology.local_world - 1),
        u64::from(topology.peers()),
    );
    let shard_rows = spec.shard_rows();
    let results = results && spec.op() == GemmOp::GemmAr;
    let row_bytes = match results {
        true => n * (ELEM_BYTES + spec.epilogue().output.bytes()),
        false => n * ELEM_BYTES,
    };
    let c_rows = if results { m } else { shard_rows };
    Traffic {
        link_bytes: u64::from(topology.nodes) * local_peers * shard_rows * row_bytes,
        nic_bytes: peers * shard_rows * row_bytes,
        memory_bytes: core::memory_bytes(spec, c_rows),
        flops: 2 * m * n * k,
    }
}

fn candidates(spec: GemmSpec<'_>, device: &Device, core: &CoreLayout) -> Vec<Candidate> {
    let (tuning, tile) = (spec.tuning(), core.tile);
    let rows = |rows: u64| rows.div_ceil(u64::from(tile.m)) as u32;
    let col_tiles = spec.shape.n.div_ceil(u64::from(tile.n)) as u32;
    let mut order = TileOrder {
        row_tiles: rows(spec.shape.m),
        col_tiles,
        group_m: tuning.group_m.unwrap_or(GROUP_M),
        shard_row_tiles: None,
        places: rows(spec.shape.m) * col_tiles,
        whole_tiles: 0,
        tail_parts: 1,
        pace_steps: 0,
    };
    if spec.world() == 1 {
        let order = core.complete(tuning, order, spec.shape.k, device.sm_count);
        return vec![candidate(spec, device, core, order, None)];
    }
    let mut found = Vec::new();
    let fits = core.group_n() <= ONE_SHOT_COLS;
    let may = tuning.shots != Some(2) && tuning.round_tiles.is_none() && !spec.crosses_nodes();
    // Ranks that have rows of C.
    let owners = match spec.op() {
        GemmOp::GemmRs => spec.shape.m.div_ceil(spec.shard_rows()) as u32,
        _ => spec.world(),
    };
    if may && fits {
        let order = core.complete(tuning, order.clone(), spec.shape.k, device.sm_count);
        // All rows to all, or each row to one rank and its sum to all, in words of two bf16.
        let relays: &[bool] = match (spec.op(), spec.epilogue().output) {
            (GemmOp::GemmAr, Dtype::Bf16) => &[false, true],
            _ => &[false],
        };
        found.extend(relays.iter().map(|results| {
            let reduction = Reduction {
                shots: 1,
                owners,
                owner_tiles: order.places,
                round_tiles: order.places,
                shard_tiles: order.places,
                put_tiles: 0,
                partial_subs: 0,
                results: *results,
            };
            candidate(spec, device, core, order.clone(), Some(reduction))
        }));
    }
    if tuning.shots == Some(1) {
        return found;
    }
    if spec.crosses_nodes() {
        return candidates_across(spec, device, core, order);
    }
    let (owners, owner_tiles) = if spec.op() == GemmOp::GemmRs {
        let shard_row_tiles = rows(spec.shard_rows());
        order.shard_row_tiles = Some(shard_row_tiles);
        order.row_tiles = owners * shard_row_tiles;
        (owners, shard_row_tiles * col_tiles)
    } else {
        let owners = spec.world().min(order.places);
        (owners, order.places.div_ceil(owners))
    };
    order.places = owners * owner_tiles;
    let order = core.complete(tuning, order, spec.shape.k, device.sm_count);
    let rounds_of = |bytes: u32| bytes / (tile.m * tile.n * ELEM_BYTES as u32);
    let rounds = match (tuning.round_tiles, spec.op()) {
        _ if owners == 1 => vec![u32::MAX],
        (Some(tiles), _) => vec![tiles],
        // Who keeps pace must not wait for parts of own tiles: they come from the round of CTAs before.
        _ if order.pace_steps > 0 => vec![device.sm_count.div_ceil(owners)],
        (None, GemmOp::GemmRs) => vec![rounds_of(ROUND_BYTES), u32::MAX],
        (None, _) => vec![rounds_of(ROUND_BYTES_OF_RESULTS)],
    };
    found.extend(rounds.into_iter().map(|round_tiles| {
        let reduction = Reduction {
            shots: 2,
            owners,
            owner_tiles,
            round_tiles: round_tiles.min(owner_tiles),
            shard_tiles: owner_tiles,
            put_tiles: 0,
            partial_subs: partial_subs(core, order.tail_parts),
            results: spec.op() == GemmOp::GemmAr,
        };
        candidate(spec, device, core, order.clone(), Some(reduction))
    }));
    found
}

/// The same across nodes, where every rank adds up tiles, some of which may have no rows; `order` has each tile once.
fn candidates_across(
    spec: GemmSpec<'_>,
    device: &Device,
    core: &CoreLayout,
    mut order: TileOrder,
) -> Vec<Candidate> {
    let (tuning, tile, topology) = (spec.tuning(), core.tile, spec.topology());
    let results = spec.op() == GemmOp::GemmAr;
    let shard_tiles = if results {
        order.places.div_ceil(spec.world())
    } else {
        let shard_row_tiles = spec.shard_rows().div_ceil(u64::from(tile.m)) as u32;
        order.shard_row_tiles = Some(shard_row_tiles);
        order.row_tiles = spec.world() * shard_row_tiles;
        shard_row_tiles * order.col_tiles
    };
    order.places = spec.world() * shard_tiles;
    let comm_ctas = tuning
        .comm_ctas
        .unwrap_or_else(|| comm_ctas(spec, device, results));
    if comm_ctas >= device.sm_count || results && !core.holds_slots() {
        return Vec::new();
    }
    let order = core.complete(tuning, order, spec.shape.k, device.sm_count - comm_ctas);
    let tile_bytes = tile.m * tile.n * ELEM_BYTES as u32;
    let owner_tiles = topology.nodes * shard_tiles;
    let round_tiles = match tuning.round_tiles {
        _ if topology.local_world == 1 => owner_tiles,
        Some(tiles) => tiles,
        None if order.pace_steps > 0 => device.sm_count.div_ceil(topology.local_world),
        None => ROUND_BYTES_OF_RESULTS / tile_bytes,
    };
    let reduction = Reduction {
        shots: 2,
        owners: topology.local_world,
        owner_tiles,
        round_tiles: round_tiles.min(owner_tiles),
        shard_tiles,
        put_tiles: put_tiles(tile_bytes, shard_tiles, topology.peers()),
        partial_subs: partial_subs(core, order.tail_parts),
        results,
    };
    let mut candidate = candidate(spec, device, core, order, Some(reduction));
    candidate.comm_ctas = comm_ctas;
    vec![candidate]
}

/// Tiles of a put: few where the last of few puts would be waited for, more where there are many peers.
fn put_tiles(tile_bytes: u32, shard_tiles: u32, peers: u32) -> u32 {
    let most = shard_tiles.div_ceil(PUTS.div_ceil(peers));
    (PUT_BYTES / tile_bytes).clamp(1, most.max(1))
}

/// CTAs that talk to the network: as many as relay results as fast as NICs bring them.
fn comm_ctas(spec: GemmSpec<'_>, device: &Device, results: bool) -> u32 {
    if !results {
        return 1;
    }
    let relayed = f64::from(spec.topology().local_world - 1) * device.nic_gb_s;
    let ctas = (relayed / cost::COMM_CTA_GB_S).ceil() as u32;
    ctas.clamp(1, MAX_COMM_CTAS.min(device.sm_count.div_ceil(4)))
}

/// As many sub-tiles of each warpgroup as the larger part of a stage holds, and as a CTA finishes of a shared tile.
fn partial_subs(core: &CoreLayout, tail_parts: u32) -> u32 {
    let held = core.tile.m.max(core.tile.n) * TILE_K * 2 / SUB_BYTES / 2;
    held.min(core.group_n() / 64 / tail_parts)
}

fn candidate(
    spec: GemmSpec<'_>,
    device: &Device,
    core: &CoreLayout,
    order: TileOrder,
    reduction: Option<Reduction>,
) -> Candidate {
    let meeting = reduction.as_ref().map(|r| Meeting {
        shots: r.shots,
        owners: r.owners,
        own_last: r.round_tiles == r.owner_tiles,
        results: r.results,
    });
    let (tags, results) = meeting.map_or((false, true), |m| (m.shots == 1, m.results));
    let traffic = traffic(spec, tags, results);
    Candidate {
        estimate_us: cost::reduce_us(core.tile, &order, spec.shape.k, meeting, &traffic, device),
        core: core.clone(),
        order,
        reduction,
        comm_ctas: 0,
    }
}

fn finish(spec: GemmSpec<'_>, device: &Device, candidate: Candidate) -> KernelPlan {
    let Candidate {
        core,
        order,
        reduction,
        comm_ctas,
        estimate_us,
    } = candidate;
    let workspace = workspace(spec, &core, &order, reduction.as_ref());
    let one_shot = reduction.as_ref().is_some_and(|r| r.shots == 1);
    let results = reduction.as_ref().is_some_and(|r| r.results) && !one_shot;
    let grid_ctas = if results {
        device.sm_count // a warp of every CTA takes results to C
    } else {
        comm_ctas + order.units().min(device.sm_count - comm_ctas)
    };
    let mut roles = core::roles((comm_ctas, grid_ctas)).to_vec();
    if comm_ctas > 0 {
        roles.push(Role {
            name: "push",
            ctas: (0, comm_ctas),
            warps: (0, THREADS / 32),
            about: match results {
                true => "arrivals, puts; other nodes' results to this node".into(),
                false => "arrivals, puts".into(),
            },
        });
    }
    if one_shot {
        roles.retain(|role| role.name != "store");
    }
    if results {
        roles.push(Role {
            name: "collect",
            ctas: (comm_ctas, grid_ctas),
            warps: (3, 4),
            about: "other owners' results to C".into(),
        });
    }
    // Nobody has to send more than two shots do.
    let least = traffic(spec, false, true);
    KernelPlan {
        id: id(spec, &core, reduction.as_ref()),
        spec: spec.kernel.clone(),
        device: device.clone(),
        threads: THREADS,
        grid_ctas,
        roles,
        operands: core::operands(spec, Extent::Fixed(spec.shape.m), c_rows(spec)),
        args: args(
            spec,
            &core,
            (order.shard_row_tiles.is_some(), one_shot, results),
        ),
        smem: core.smem,
        smem_bytes: core.smem_bytes,
        workspace,
        copies: None,
        network: reduction
            .as_ref()
            .filter(|r| r.put_tiles > 0)
            .map(|r| network(spec, core.tile, r)),
        registers: core::REGISTERS,
        bound: Bound::new(&least, device),
        traffic: reduction
            .as_ref()
            .map_or(least, |r| traffic(spec, r.shots == 1, r.results)),
        estimate_us,
        body: Body::Gemm(GemmPlan {
            config: *spec.config,
            shape: spec.shape,
            tile: core.tile,
            split: core.split,
            stages: core.stages,
            transfer: None,
            comm_ctas,
            order,
            chunks: None,
            reduction,
        }),
    }
}

fn network(spec: GemmSpec<'_>, tile: Tile, r: &Reduction) -> Network {
    let elem_bytes = match r.results {
        true => spec.epilogue().output.bytes(),
        false => ELEM_BYTES,
    };
    Network {
        // Sums, and results.
        channels: 1 + u16::from(r.results),
        puts: r.shard_tiles.div_ceil(r.put_tiles),
        put_bytes: u64::from(r.put_tiles * tile.m * tile.n) * elem_bytes,
    }
}

fn id(spec: GemmSpec<'_>, core: &CoreLayout, reduction: Option<&Reduction>) -> String {
    let GemmShape { m, n, k } = spec.shape;
    let (tile, stages) = (core.tile, core.stages);
    let how = match reduction {
        Some(r) if r.shots == 1 && r.results => "_relay".to_owned(),
        Some(r) if r.shots == 1 => "_oneshot".to_owned(),
        Some(r) => format!("_rounds{}", r.round_tiles),
        None => String::new(),
    };
    format!(
        "{}_sm90a_g{}_m{m}n{n}k{k}_{}_t{}x{}s{stages}{how}{}",
        spec.op(),
        core::ranks(spec),
        spec.b_layout(),
        tile.m,
        tile.n,
        spec.epilogue().suffix(),
    )
}

fn workspace(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    order: &TileOrder,
    reduction: Option<&Reduction>,
) -> Workspace {
    let mut parts = core.order_regions(order);
    if let Some(r) = reduction {
        let tile_bytes = u64::from(core.tile.m * core.tile.n) * ELEM_BYTES;
        if spec.op() == GemmOp::GemmRs && r.owners < spec.topology().local_world {
            parts.push(("begun", u64::from(spec.world()) * FLAG_STRIDE_BYTES));
        }
        if r.shots == 1 {
            let sources = spec.world() + u32::from(r.results);
            let tiles = u64::from(sources * r.owner_tiles);
            parts.push(("slots", 2 * tiles * 2 * tile_bytes));
            return Workspace::new(parts);
        }
        let topology = spec.topology();
        // A rank alone on its node gets no parts of sums.
        let sources = match (topology.local_world, topology.nodes) {
            (1, 2..) => 0,
            (local_world, _) => local_world,
        };
        let slots = u64::from(sources) * u64::from(r.owner_tiles);
        parts.push(("partial_flags", slots * FLAG_STRIDE_BYTES));
        parts.push(("partials", 2 * slots * tile_bytes));
        if r.put_tiles > 0 {
            let puts = u64::from(topology.nodes * r.shard_tiles.div_ceil(r.put_tiles));
            let sums = u64::from(topology.peers() * r.shard_tiles);
            parts.push(("put_flags", puts * FLAG_STRIDE_BYTES));
            parts.push(("sums_out", 2 * sums * tile_bytes));
            parts.push(("sums_in", 2 * sums * tile_bytes));
            parts.extend(core::arrived_region(spec, 1 + u32::from(r.results)));
        }
        if r.results {
            let tiles = u64::from(spec.world().min(r.owners * topology.nodes) * r.shard_tiles);
            parts.push(("result_flags", tiles * FLAG_STRIDE_BYTES));
            let elems = u64::from(core.tile.m * core.tile.n);
            parts.push((
                "results",
                2 * tiles * elems * spec.epilogue().output.bytes(),
            ));
        }
    }
    Workspace::new(parts)
}

/// This rank's rows of C.
fn c_rows(spec: GemmSpec<'_>) -> Extent {
    match spec.op() {
        GemmOp::GemmRs => Extent::ShardRows {
            total: spec.shape.m,
            per_rank: spec.shard_rows(),
        },
        _ => Extent::Fixed(spec.shape.m),
    }
}

fn args(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    (by_shards, one_shot, results): (bool, bool, bool),
) -> ArgLayout {
    let tile: Tile = core.tile;
    let a = [Extent::Fixed(spec.shape.k), Extent::Fixed(spec.shape.m)];
    // Rows out of bounds take longer to fill with zeros than others to load, and none of them matters. The swizzle
    // repeats every 8 rows.
    let most_rows = if by_shards {
        spec.shard_rows()
    } else {
        spec.shape.m
    };
    let rows_of_a = u64::from(tile.m).min(most_rows.next_multiple_of(8)) as u32;
    let mut kinds = vec![
        ("a", core::operand_map(Operand::A, a, [TILE_K, rows_of_a])),
        ("b", core::b_map(spec, tile)),
    ];
    if !one_shot {
        kinds.push(("c", core::c_map(spec, c_rows(spec))));
    }
    if one_shot || results {
        kinds.push(("c_rows", ArgKind::Pointer(Operand::C)));
        kinds.push(("c_row_bytes", ArgKind::RowStrideBytes(Operand::C)));
    }
    kinds.extend(core::epilogue_args(spec));
    kinds.push(("workspaces", ArgKind::Workspaces));
    kinds.push(("host", ArgKind::HostPage));
    kinds.push(("deadline_ns", ArgKind::DeadlineNs));
    kinds.push(("rank", ArgKind::Rank));
    kinds.extend(core::network_args(spec));
    ArgLayout::new(kinds)
}
