//! `ag_gemm`: C = AllGather(A) · B.
//!
//! A rank's rows of A travel to every peer's `gathered` buffer, chunk by chunk, a flag behind each. Compute CTAs take
//! own rows first, in place, then the peers' rows in the order in which they arrive. `gathered` is double-buffered by
//! epoch: a rank that starts epoch e has finished e-1, for which it needed every peer to have started e-1 and so to
//! have finished e-2, the last reader of the buffer that e writes. No barrier is needed.
//!
//! Across nodes, a rank's rows also go to its own `gathered` buffer, from where each chunk is put to the same place of the
//! GPUs of its number on the other nodes. These relay it to the peers of their node. Every rank waits for every chunk of
//! its peers on other nodes, an empty one too, so what was said of buffers holds: who relays in epoch e has begun it, and
//! who puts has, too. The source of a put is written again in e+2, when its peers have begun e+1, and so have had it.

use super::config::{GemmShape, Tile, Transfer};
use super::core::{self, CoreLayout};
use super::cost::{self, Push};
use super::exchange::{Exchange, Way, network, own_bytes, put_bytes, ways};
use super::memory::{self, Needs};
use super::op_plan::{Chunks, GemmPlan, SLOT_BYTES, THREADS, TILE_K, TileOrder};
use super::smem;
use super::spec::GemmSpec;
use crate::abi::{ArgKind, ArgLayout, Extent, MAX_RANKS, Operand, Source, Stride, TensorMapSpec};
use crate::config::{Dtype, Field};
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::plan::network::common_args;
use crate::plan::{Copies, KernelPlan, MAX_PUT_BYTES, OpPlan, Role, Workspace};
use crate::roofline::{Bound, Traffic};

const ELEM_BYTES: u64 = 2;
/// Row tiles that share B tiles in L2: 8 to 16 are equal within noise, fewer cost.
const GROUP_M: u32 = 8;

/// One way to do it; the cost model chooses among them.
struct Candidate {
    core: CoreLayout,
    transfer: Option<Transfer>,
    comm_ctas: u32,
    chunks: Option<Chunks>,
    order: TileOrder,
    estimate_us: f64,
}

/// The fastest plan by the cost model.
pub(super) fn plan(spec: GemmSpec<'_>, device: &Device) -> Result<KernelPlan, Diagnostics> {
    let traffic = traffic(spec);
    let mut rejected = Diagnostics::default();
    let mut best: Option<Candidate> = None;
    for tile in core::candidate_tiles(spec.tuning()) {
        match candidates(spec, device, tile, &traffic) {
            Ok(found) => {
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
        Some(candidate) => Ok(finish(spec, device, traffic, candidate)),
        None => Err(rejected),
    }
}

fn traffic(spec: GemmSpec<'_>) -> Traffic {
    let GemmShape { m, n, k } = spec.shape;
    let (topology, shard_bytes) = (spec.topology(), spec.shard_rows() * k * ELEM_BYTES);
    Traffic {
        // Across nodes, what comes from others is relayed.
        link_bytes: u64::from(topology.nodes * (topology.local_world - 1)) * shard_bytes,
        nic_bytes: u64::from(topology.peers()) * shard_bytes,
        memory_bytes: core::memory_bytes(spec, m),
        flops: 2 * m * n * k,
    }
}

fn candidates(
    spec: GemmSpec<'_>,
    device: &Device,
    tile: Tile,
    traffic: &Traffic,
) -> Result<Vec<Candidate>, Diagnostics> {
    let tuning = spec.tuning();
    let core = CoreLayout::new(tile, tuning, device)?;
    let shard_rows = spec.shard_rows();
    let row_tiles = spec.shape.m.div_ceil(u64::from(tile.m)) as u32;
    let whole_tiles = shard_rows / u64::from(tile.m) * u64::from(spec.world());
    let aligned = spec.world() == 1
        || shard_rows.is_multiple_of(u64::from(tile.m)) && whole_tiles == u64::from(row_tiles);
    let shard_row_tiles =
        (spec.world() > 1 && aligned).then(|| (shard_rows / u64::from(tile.m)) as u32);
    let col_tiles = spec.shape.n.div_ceil(u64::from(tile.n)) as u32;
    let order = TileOrder {
        row_tiles,
        col_tiles,
        slots: row_tiles * col_tiles,
        // A group of own and of remote rows would wait before own rows are done.
        group_m: tuning
            .group_m
            .unwrap_or(GROUP_M.min(shard_row_tiles.unwrap_or(GROUP_M))),
        shard_row_tiles,
        whole_tiles: 0,
        tail_parts: 1,
        pace_steps: 0,
    };
    let tiles = order.tiles();
    let make = |transfer, comm_ctas, chunks: Option<Chunks>, push| {
        let order = core.complete(
            tuning,
            order.clone(),
            spec.shape.k,
            device.sm_count - comm_ctas,
        );
        Candidate {
            estimate_us: cost::estimate_us(tile, &order, spec.shape.k, push, traffic, device),
            core: core.clone(),
            transfer,
            comm_ctas,
            chunks,
            order,
        }
    };
    if spec.world() == 1 {
        return Ok(vec![make(None, 0, None, Push::None)]);
    }

    let mut found = Vec::new();
    let mut refused = Diagnostics::default();
    if spec.crosses_nodes() && device.sm_count == 1 {
        refused.push(
            Field::NODES,
            format!(
                "across nodes some SMs send while others compute, and {} has 1 SM",
                device.name
            ),
            "use a GPU with 2 SMs or more",
        );
        return Err(refused);
    }
    for way in ways(tuning, spec.crosses_nodes()) {
        if let Way::Sm { ctas, .. } = way
            && ctas >= device.sm_count
        {
            refused.push(
                Field::COMM_CTAS,
                format!(
                    "{ctas} communication CTAs leave none of {} SMs to compute",
                    device.sm_count
                ),
                format!("use fewer than {}", device.sm_count),
            );
            continue;
        }
        if matches!(way, Way::Sm { ctas: 1.., .. }) && !core.holds_slots() {
            refused.push(
                Field::COMM_CTAS,
                format!(
                    "communication CTAs push through {} bytes of shared memory, more than {} stages of a {}x{} tile and the output take",
                    THREADS / 32 * SLOT_BYTES,
                    core.stages,
                    tile.m,
                    tile.n
                ),
                "use more stages, a larger tile, or comm_ctas = 0",
            );
            continue;
        }
        if !aligned && !matches!(way, Way::Sm { .. }) {
            refused.push(
                Field::TRANSFER,
                format!(
                    "copy engines want shards of whole tiles, but ⌈M/W⌉ = {shard_rows} is no multiple of {} rows",
                    tile.m
                ),
                "use sm_push, or pad M",
            );
            continue;
        }
        let exchange = Exchange {
            spec,
            device,
            aligned,
            tiles,
        };
        match way {
            Way::Sm { ctas, slices } => match exchange.sm_chunks(ctas, slices) {
                Some(chunks) if put_bytes(spec, &chunks) > MAX_PUT_BYTES => refused.push(
                    Field::CHUNK_ROWS,
                    format!(
                        "{} rows of K = {} are {} bytes, a put to another node has at most {MAX_PUT_BYTES}",
                        chunks.rows,
                        spec.shape.k,
                        put_bytes(spec, &chunks)
                    ),
                    "use fewer rows, or split K",
                ),
                Some(chunks) => {
                    let push = Push::Sm {
                        ctas,
                        slices,
                        own_bytes: own_bytes(spec),
                    };
                    found.push(make(Some(Transfer::SmPush), ctas, Some(chunks), push));
                }
                None => refused.push(
                    Field::K_SLICES,
                    format!(
                        "{slices} slices of K = {} would not hold {TILE_K} columns each",
                        spec.shape.k
                    ),
                    "use fewer slices",
                ),
            },
            Way::Copies { per_peer } => {
                let chunks = exchange.copy_chunks(tile, per_peer);
                let copies = chunks.per_shard * (spec.world() - 1);
                let push = Push::Copies { copies };
                found.push(make(Some(Transfer::CopyEngine), 0, Some(chunks), push));
            }
        }
    }
    if found.is_empty() {
        Err(refused)
    } else {
        Ok(found)
    }
}

fn finish(
    spec: GemmSpec<'_>,
    device: &Device,
    traffic: Traffic,
    candidate: Candidate,
) -> KernelPlan {
    let Candidate {
        core,
        transfer,
        comm_ctas,
        chunks,
        order,
        estimate_us,
    } = candidate;
    let workspace = memory::workspace(&Needs {
        spec,
        core: &core,
        order: &order,
        chunks: chunks.as_ref(),
        reduction: None,
    });
    let pushes = transfer == Some(Transfer::SmPush);
    let compute_ctas = if pushes && comm_ctas == 0 {
        device.sm_count // every CTA pushes, also one without a tile
    } else {
        order.units().min(device.sm_count - comm_ctas)
    };
    let grid_ctas = comm_ctas + compute_ctas;
    let copies = chunks
        .as_ref()
        .filter(|_| !pushes)
        .and_then(|chunks| copies(spec, chunks, &workspace));
    KernelPlan {
        id: id(spec, &core, transfer, comm_ctas, chunks.as_ref()),
        spec: spec.kernel.clone(),
        device: device.clone(),
        threads: THREADS,
        grid_ctas,
        roles: roles(spec, pushes, comm_ctas, grid_ctas),
        network: network(spec, chunks.as_ref()),
        operands: core::operands(spec, a_rows(spec), Extent::Fixed(spec.shape.m)),
        args: args(spec, &core, chunks.as_ref(), &workspace),
        smem: core.smem,
        comm_smem: match comm_ctas {
            0 => Vec::new(),
            _ => smem::comm_smem(),
        },
        smem_bytes: core.smem_bytes,
        workspace,
        copies,
        registers: core::REGISTERS,
        bound: Bound::new(&traffic, device),
        traffic,
        estimate_us,
        op_plan: OpPlan::Gemm(GemmPlan {
            config: *spec.config,
            shape: spec.shape,
            tile: core.tile,
            split: core.split,
            stages: core.stages,
            load_rows_a: core.tile.m,
            transfer,
            comm_ctas,
            order,
            chunks,
            reduction: None,
        }),
    }
}

fn id(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    transfer: Option<Transfer>,
    comm_ctas: u32,
    chunks: Option<&Chunks>,
) -> String {
    let GemmShape { m, n, k } = spec.shape;
    let (tile, stages) = (core.tile, core.stages);
    let how = match (transfer, chunks) {
        (Some(Transfer::SmPush), Some(c)) => format!("_push{comm_ctas}r{}s{}", c.rows, c.k_slices),
        (Some(Transfer::CopyEngine), Some(c)) => format!("_copy{}", c.rows),
        _ => String::new(),
    };
    format!(
        "{}_sm90a_g{}_m{m}n{n}k{k}_{}_t{}x{}s{stages}{how}{}",
        spec.op(),
        spec.topology(),
        spec.b_layout(),
        tile.m,
        tile.n,
        spec.epilogue().suffix(),
    )
}

fn roles(spec: GemmSpec<'_>, pushes: bool, comm_ctas: u32, grid_ctas: u32) -> Vec<Role> {
    let compute = (comm_ctas, grid_ctas);
    let (name, ctas, warps, about) = match (comm_ctas, spec.crosses_nodes()) {
        (0, _) => (
            "push_by_registers",
            compute,
            (3, 4),
            "own rows of A to every peer",
        ),
        (_, false) => (
            "push",
            (0, comm_ctas),
            (0, THREADS / 32),
            "own rows of A to every peer",
        ),
        (_, true) => (
            "communicate",
            (0, comm_ctas),
            (0, THREADS / 32),
            "a warp watches arrivals, one puts, all others push own rows and relay other nodes'",
        ),
    };
    let push = pushes.then(|| Role {
        name,
        ctas,
        warps,
        about: about.into(),
    });
    push.into_iter().chain(core::roles(compute)).collect()
}

fn copies(spec: GemmSpec<'_>, chunks: &Chunks, workspace: &Workspace) -> Option<Copies> {
    let gathered = workspace.offset_of("gathered")?;
    Some(Copies {
        row_bytes: spec.shape.k * ELEM_BYTES,
        rows: chunks.rows,
        shard_rows: spec.shard_rows(),
        total_rows: spec.shape.m,
        gathered_offset_bytes: [
            gathered,
            gathered + spec.shape.m * spec.shape.k * ELEM_BYTES,
        ],
        flags_offset_bytes: workspace.offset_of("chunk_ready")?,
        flags_per_source: chunks.per_shard * chunks.k_slices,
    })
}

/// This rank's rows of A.
fn a_rows(spec: GemmSpec<'_>) -> Extent {
    Extent::ShardRows {
        total: spec.shape.m,
        per_rank: spec.shard_rows(),
    }
}

fn args(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    chunks: Option<&Chunks>,
    workspace: &Workspace,
) -> ArgLayout {
    let GemmShape { m, k, .. } = spec.shape;
    let tile = core.tile;
    let mut kinds = Vec::new();
    if chunks.is_none_or(|c| !c.to_self) {
        // A rank alone has all of A.
        let name = if chunks.is_some() { "own_a" } else { "a" };
        let extents = [Extent::Fixed(k), a_rows(spec)];
        kinds.push((
            name,
            core::operand_map(Operand::A, extents, [TILE_K, tile.m]),
        ));
    }
    if let Some(offset_bytes) = workspace.offset_of("gathered") {
        let row_bytes = k * ELEM_BYTES;
        kinds.push((
            "gathered_a",
            ArgKind::TensorMap(TensorMapSpec {
                source: Source::Workspace { offset_bytes },
                dtype: Dtype::Bf16,
                extents: vec![Extent::Fixed(k), Extent::Fixed(m), Extent::Fixed(2)],
                strides: vec![Stride::Bytes(row_bytes), Stride::Bytes(row_bytes * m)],
                box_elems: vec![TILE_K, tile.m, 1],
            }),
        ));
    }
    kinds.push(("b", core::b_map(spec, tile)));
    kinds.push(("c", core::c_map(spec, Extent::Fixed(m))));
    if chunks.is_some() {
        kinds.push(("shard", ArgKind::Pointer(Operand::A)));
        kinds.push(("shard_row_bytes", ArgKind::RowStrideBytes(Operand::A)));
    }
    kinds.extend(core::epilogue_args(spec));
    kinds.push(("workspaces", ArgKind::Workspaces));
    kinds.push(("host", ArgKind::HostPage));
    kinds.push(("deadline_ns", ArgKind::DeadlineNs));
    kinds.push(("rank", ArgKind::Rank));
    kinds.extend(common_args(spec.topology()));
    debug_assert!(spec.topology().local_world as usize <= MAX_RANKS);
    ArgLayout::new(kinds)
}
