//! `ag_gemm`: C = AllGather(A) · B. `gemm`: C = A · B, planned as `ag_gemm` of one rank.
//!
//! A rank's rows of A travel to every peer's `gathered` buffer in chunks, and a flag follows each chunk. Compute CTAs first take
//! their own rank's rows, in place, and then the peers' rows in the order of arrival. `gathered` is double-buffered by epoch: a
//! rank that starts epoch e has finished e-1. To finish e-1, it needed every peer to have started e-1, and so to have finished
//! e-2, the last reader of the buffer that e writes. No barrier is needed.
//!
//! Across nodes, a rank's rows also go to its own `gathered` buffer. From there, each chunk is put to the equal offset on the
//! GPUs with this rank's local rank on the other nodes, which forward the chunk to the peers of their node. Every rank waits for
//! every chunk of its peers on other nodes, even for an empty chunk. So the argument about buffers still holds: ranks that
//! forward or put in epoch e have begun e. The source of a put is written again in e+2. By then its peers have begun e+1, and
//! so have received the put.
//!
//! If rows of A have scales, a row in `gathered` has its scales behind its elements. So scales arrive under the flag of their row,
//! and puts and forwarders move both as one.
//!
//! If A lies in symmetric memory, NICs read A in place, and nothing is copied to this rank's own `gathered`. The caller may write
//! A when the call has ended, so the kernel does not end before the NIC has sent all rows of A.

mod candidates;

use candidates::{Candidate, candidates};

use super::config::{GemmShape, Transfer};
use super::core::{self, CoreLayout};
use super::exchange::network;
use super::maps;
use super::memory::{self, GemmWorkspace, Needs};
use super::op_plan::{Chunks, GemmPlan};
use super::operands;
use super::roles::Roles;
use super::smem;
use super::spec::GemmSpec;
use crate::abi::{ArgKind, ArgLayout, Extent, MAX_RANKS, Operand, Source, Stride, TensorMapSpec};
use crate::arch::Arch;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::parts::network::common_args;
use crate::parts::{BodyPlan, Copies, Launch, Workspace};
use crate::roofline::{Bound, Traffic};

/// The fastest plan by the cost model.
pub(super) fn plan(spec: GemmSpec<'_>, device: &Device) -> Result<BodyPlan<GemmPlan>, Diagnostics> {
    let traffic = traffic(spec);
    let mut rejected = Diagnostics::default();
    let mut best: Option<Candidate> = None;
    for tile in core::candidate_tiles(spec, device.arch) {
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
    let GemmShape { m, k, .. } = spec.shape;
    let (topology, shard_bytes) = (spec.topology, spec.shard_rows() * spec.sent_row_bytes());
    Traffic {
        // Across nodes, rows from other nodes are forwarded over the links.
        link_bytes: u64::from(topology.nodes * (topology.local_world - 1)) * shard_bytes,
        nic_bytes: u64::from(topology.peers()) * shard_bytes,
        memory_bytes: operands::memory_bytes(spec, m),
        flops: 2 * m * spec.cols_of_b() * k,
        factors: spec.types().a,
    }
}

fn finish(
    spec: GemmSpec<'_>,
    device: &Device,
    traffic: Traffic,
    candidate: Candidate,
) -> BodyPlan<GemmPlan> {
    let Candidate {
        core,
        transfer,
        comm_ctas,
        chunks,
        order,
        estimate_us,
    } = candidate;
    let needs = Needs {
        spec,
        core: &core,
        order: &order,
        compute_ctas: device.sm_count - comm_ctas,
        chunks: chunks.as_ref(),
        reduction: None,
    };
    let workspace = memory::workspace(&needs);
    let pushes = transfer == Some(Transfer::SmPush);
    // Every CTA pushes, even a CTA without a tile. All CTAs of a cluster have a tile.
    let pushes_all = pushes && comm_ctas == 0 && core.cluster.is_none();
    let compute_ctas = match pushes_all || spec.takes_rows() {
        true => device.sm_count - comm_ctas,
        false => order.work_tiles().min(device.sm_count - comm_ctas),
    };
    let grid_ctas = comm_ctas + compute_ctas;
    let (roles, call) = Roles::new(&needs, comm_ctas, grid_ctas).gathering(transfer);
    let copies = chunks
        .as_ref()
        .filter(|_| !pushes)
        .and_then(|chunks| copies(spec, chunks, &workspace));
    let op_plan = GemmPlan {
        load_rows_a: maps::load_rows_a(core.tile, spec.shape.m),
        transfer,
        comm_ctas,
        chunks: chunks.clone(),
        ..core.plan(spec, order)
    };
    BodyPlan {
        id: id(spec, device.arch, &op_plan),
        launch: Launch {
            threads: core.arch.threads(),
            grid_ctas,
            cluster_ctas: core.cluster.map_or(1, |cluster| cluster.ctas),
            registers: core::registers(spec, device.arch, false),
        },
        roles,
        call,
        network: network(spec, chunks.as_ref()),
        operands: operands::operands(spec, spec.rows_of_a(), spec.all_rows()),
        args: args(spec, &core, chunks.as_ref(), &workspace),
        smem: core.smem,
        comm_smem: smem::comm_smem(core.arch, comm_ctas > 0),
        smem_bytes: core.smem_bytes,
        workspace,
        copies,
        bound: Bound::new(&traffic, device),
        traffic,
        estimate_us,
        op_plan,
    }
}

fn id(spec: GemmSpec<'_>, arch: Arch, op_plan: &GemmPlan) -> String {
    let (tile, comm_ctas) = (op_plan.tile, op_plan.comm_ctas);
    let how = match (op_plan.transfer, &op_plan.chunks) {
        (Some(Transfer::SmPush), Some(c)) => format!("_push{comm_ctas}r{}s{}", c.rows, c.k_slices),
        (Some(Transfer::CopyEngine), Some(c)) => format!("_copy{}", c.rows),
        _ => String::new(),
    };
    let place = if spec.sends_in_place() {
        "_symmetric"
    } else {
        ""
    };
    let cluster = op_plan.cluster.map(|c| format!("_cluster{}", c.ctas));
    let cluster = cluster.unwrap_or_default();
    format!(
        "{}_{}_t{}x{}s{}{cluster}{how}{place}{}",
        spec.id(arch),
        spec.b_layout(),
        tile.m,
        tile.n,
        op_plan.stages,
        spec.config.suffix(),
    )
}

fn copies(spec: GemmSpec<'_>, chunks: &Chunks, workspace: &Workspace) -> Option<Copies> {
    let gathered = workspace.region(GemmWorkspace::gathered)?.offset_bytes;
    Some(Copies {
        row_bytes: spec.a_row_bytes(),
        rows: chunks.rows,
        shard_rows: spec.shard_rows(),
        total_rows: spec.shape.m,
        gathered_offset_bytes: [gathered, gathered + spec.shape.m * spec.a_row_bytes()],
        flags_offset_bytes: workspace.region(GemmWorkspace::chunk_ready)?.offset_bytes,
        flags_per_source: chunks.per_shard * chunks.k_slices,
    })
}

fn args(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    chunks: Option<&Chunks>,
    workspace: &Workspace,
) -> ArgLayout {
    let GemmShape { m, k, .. } = spec.shape;
    let tile = core.tile;
    let rows = maps::load_rows_a(tile, m);
    let mut kinds = Vec::new();
    if chunks.is_none_or(|c| !c.to_self) {
        // A rank alone has all of A.
        let name = if chunks.is_some() { "own_a" } else { "a" };
        kinds.push((name, maps::a_map(spec, spec.rows_of_a(), rows)));
    }
    if let Some(gathered) = workspace.region(GemmWorkspace::gathered) {
        let offset_bytes = gathered.offset_bytes;
        let (row_bytes, types) = (spec.sent_row_bytes(), spec.types());
        kinds.push((
            "gathered_a",
            ArgKind::TensorMap(TensorMapSpec {
                source: Source::Workspace { offset_bytes },
                dtype: types.a,
                extents: vec![Extent::Fixed(k), Extent::Fixed(m), Extent::Fixed(2)],
                strides: vec![Stride::Bytes(row_bytes), Stride::Bytes(row_bytes * m)],
                box_elems: vec![types.tile_k(), rows, 1],
                box_of_call: spec.takes_rows(),
            }),
        ));
    }
    kinds.push(("b", maps::b_map(spec, tile)));
    // TMA stores full lines.
    let by_tma = core.cluster.is_none() && spec.line_cols(tile) == spec.types().c.per_line();
    if by_tma {
        kinds.push(("c", maps::c_map(spec, spec.all_rows())));
    }
    if spec.takes_rows() || !by_tma {
        kinds.extend(operands::c_address(spec));
    }
    if chunks.is_some() {
        kinds.push(("shard", ArgKind::Pointer(Operand::A)));
        kinds.push(("shard_row_bytes", ArgKind::RowStrideBytes(Operand::A)));
    }
    if spec.sends_in_place() {
        kinds.push(("shard_place", ArgKind::SymmetricPlace(Operand::A)));
    }
    kinds.extend(operands::epilogue_args(spec));
    kinds.push(("workspaces", ArgKind::Workspaces));
    kinds.push(("host", ArgKind::HostPage));
    kinds.push(("deadline_ns", ArgKind::DeadlineNs));
    kinds.push(("rank", ArgKind::Rank));
    kinds.extend(operands::rows_args(spec, rows));
    kinds.extend(common_args(spec.topology));
    debug_assert!(spec.topology.local_world as usize <= MAX_RANKS);
    ArgLayout::new(kinds)
}
