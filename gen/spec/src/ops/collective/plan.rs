//! The plan of a collective.
//!
//! Few bytes on one node travel as packets that need no flag behind them. All other tensors are cut into chunks. A warp moves
//! each chunk under one flag, and every CTA has warps for each step, so that steps of different chunks overlap.
//!
//! Slots are double-buffered by epoch: a rank that starts epoch e has received data of e-1 from each rank to which it
//! writes. This rank has therefore finished e-2. Where some ranks may have no shard, ranks signal each other that they have
//! begun. Across nodes every rank waits for all puts of its peers, so the argument also holds for the sources and targets of
//! puts.

use super::check::MAX_LL_BYTES;
use super::config::{CollectiveConfig, CollectiveOp, CollectiveShape, Protocol, VEC_BYTES};
use super::op_plan::{CollectivePlan, LL_THREADS, Owners, RowWarps, StepWarps};
use super::roles::Roles;
use super::{cost, layout, memory};
use crate::config::{Dtype, Field};
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::parts::network::PUT_BYTES;
use crate::parts::{BodyPlan, Launch, Network, Role};
use crate::roofline::{Bound, Traffic};
use crate::topology::Topology;

/// Threads of a CTA that moves chunks.
const THREADS: u32 = 512;
/// The fewest bytes of a chunk. With fewer, flags take too much of the time.
const MIN_CHUNK_BYTES: u64 = 2 << 10;
/// The most bytes of a chunk: the bytes that a warp loads in one round, so that all steps are busy at the same time
/// (`docs/performance.md#chunks-of-collectives`).
const MAX_CHUNK_BYTES: u64 = 4 << 10;
/// Vectors of a lane that are under way at a time.
const UNROLL: u32 = 8;
/// The most vectors of a row that a lane holds until the row is normalised. Registers set the limit.
const MAX_LANE_VECS: u32 = 16;
/// The most parts of vectors that a lane holds while it adds. Registers set the limit.
const PARTS_IN_FLIGHT: u32 = 16;

/// The fastest plan by the cost model.
pub(crate) fn plan(
    config: &CollectiveConfig,
    shape: CollectiveShape,
    topology: Topology,
    device: &Device,
) -> Result<BodyPlan<CollectivePlan>, Diagnostics> {
    let estimate = |op_plan: &CollectivePlan| estimate_us(op_plan, topology, device);
    let candidates = candidates(config, shape, topology, device);
    let best = candidates
        .into_iter()
        .min_by(|a, b| estimate(a).total_cmp(&estimate(b)));
    match best {
        Some(best) => {
            let us = estimate(&best);
            Ok(finish(topology, device, best, us))
        }
        None => Err(too_long_rows(shape, device)),
    }
}

/// Expected time, µs.
fn estimate_us(op_plan: &CollectivePlan, topology: Topology, device: &Device) -> f64 {
    cost::estimate_us(op_plan, topology, &traffic(op_plan, topology), device)
}

/// Expected time of a call of `rows` rows by this design, µs.
pub(crate) fn us_of_rows(
    op_plan: &CollectivePlan,
    rows: u64,
    topology: Topology,
    device: &Device,
) -> f64 {
    let fewer = op_plan.with_rows(rows, topology.world());
    estimate_us(&fewer, topology, device)
}

/// The roles of packets in a larger launch, where threads and CTAs without packets have no work. `None` if registers have
/// no room for the vectors of a lane, or if the plan has no packets.
pub(crate) fn roles_in(
    launch: Launch,
    op_plan: &CollectivePlan,
    topology: Topology,
) -> Option<Vec<Role>> {
    let Launch {
        threads, grid_ctas, ..
    } = launch;
    let fits = op_plan.norm.is_none_or(|norm| {
        norm.lane_vecs * threads <= MAX_LANE_VECS * LL_THREADS
            && norm.warps <= grid_ctas * threads / 32
    });
    let has_packets = op_plan.protocol == Protocol::Ll;
    (fits && has_packets).then(|| Roles::new(op_plan, topology).all(threads, grid_ctas))
}

/// The reason why packets cannot carry rows that are normalised.
fn too_long_rows(shape: CollectiveShape, device: &Device) -> Diagnostics {
    let mut found = Diagnostics::default();
    found.push(
        Field::PROTOCOL,
        format!(
            "with a norm, the registers of {} SMs have no room for a row of {} columns in packets",
            device.sm_count, shape.n
        ),
        "use \"simple\", or more SMs",
    );
    found
}

fn candidates(
    config: &CollectiveConfig,
    shape: CollectiveShape,
    topology: Topology,
    device: &Device,
) -> Vec<CollectivePlan> {
    let may_be = |protocol| config.protocol.is_none_or(|given| given == protocol);
    let most_bytes = config
        .packet_kib
        .map_or(MAX_LL_BYTES, |kib| u64::from(kib) << 10);
    let fits = shape.m * config.sent_row_bytes(shape.n) <= most_bytes;
    let mut found = Vec::new();
    if topology.world() > 1 && topology.nodes == 1 && may_be(Protocol::Ll) && fits {
        let shots: &[u32] = match config.op {
            CollectiveOp::AllReduce => &[1, 2],
            _ => &[0],
        };
        let shots = shots.iter().copied();
        let shots = shots.filter(|shots| config.shots.is_none_or(|given| given == *shots));
        found.extend(shots.filter_map(|shots| {
            let mut op_plan = with_packets(config, shape, topology, shots);
            if config.epilogue.normalises() {
                let warps = u64::from(device.sm_count * LL_THREADS / 32);
                let norm = RowWarps::in_registers(shape.m, op_plan.row_vecs(), warps);
                op_plan.norm = Some(norm);
                return (norm.lane_vecs <= MAX_LANE_VECS).then_some(op_plan);
            }
            Some(op_plan)
        }));
    }
    // One rank sends nothing, whatever the protocol and the number of shots.
    let is_given_packets = config.shots.is_some() || !may_be(Protocol::Simple);
    if topology.world() == 1 || !is_given_packets {
        found.push(with_chunks(config, shape, topology, device));
    }
    found
}

/// The candidate with packets. All other candidates are derived from this one.
fn with_packets(
    config: &CollectiveConfig,
    shape: CollectiveShape,
    topology: Topology,
    shots: u32,
) -> CollectivePlan {
    let op_plan = CollectivePlan {
        config: *config,
        shape,
        protocol: Protocol::Ll,
        shots,
        owners: config.root(topology.world()).map(Owners::root),
        shard_vecs: 0,
        chunk_vecs: 0,
        unroll: 0,
        reduce_unroll: 0,
        put_chunks: 0,
        warps: StepWarps::default(),
        norm: None,
    };
    op_plan.with_rows(shape.m, topology.world())
}

fn with_chunks(
    config: &CollectiveConfig,
    shape: CollectiveShape,
    topology: Topology,
    device: &Device,
) -> CollectivePlan {
    let mut op_plan = with_packets(config, shape, topology, 0);
    op_plan.protocol = Protocol::Simple;
    if let Some(root) = config.root(topology.world()) {
        op_plan.owners = Some(Owners::relays(root, topology));
        op_plan = op_plan.with_rows(shape.m, topology.world());
    }
    op_plan.warps = match op_plan.stores_to_results(topology) {
        true => step_warps_to_results(config.op),
        false => step_warps(config.op, topology),
    };
    if config.epilogue.normalises() {
        op_plan.norm = Some(RowWarps::one(op_plan.row_vecs()));
        if topology.world() == 1 {
            op_plan.warps = StepWarps {
                reduce: 8,
                collect: 8,
                ..StepWarps::default()
            };
        }
    }
    let workers = u64::from(device.sm_count * op_plan.warps.push.max(op_plan.warps.reduce).max(1));
    let pushed_vecs = match config.op.exchanges() {
        true => op_plan.vecs(),
        false => op_plan.shard_vecs,
    };
    let bytes = pushed_vecs * VEC_BYTES / workers;
    let bytes = bytes.clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES);
    op_plan.chunk_vecs = (bytes / VEC_BYTES)
        .next_power_of_two()
        .min(op_plan.shard_vecs);
    op_plan.unroll = UNROLL;
    if config.op.reduces() {
        op_plan.reduce_unroll = (PARTS_IN_FLIGHT / topology.local_world).clamp(1, UNROLL);
    }
    if topology.peers() > 0 {
        let chunks = u64::from(PUT_BYTES) / (op_plan.chunk_vecs * VEC_BYTES);
        op_plan.put_chunks = chunks.clamp(1, op_plan.shard_chunks());
    }
    op_plan
}

/// The warps of a CTA by step, about in proportion to the bytes that each step loads and stores. Across nodes, up to three
/// warps have the network instead.
fn step_warps(op: CollectiveOp, topology: Topology) -> StepWarps {
    let (push, reduce, collect, relay) = match (op, topology.nodes, topology.local_world) {
        (CollectiveOp::AllReduce | CollectiveOp::ReduceScatter, 1, 1) => (0, 16, 0, 0),
        (_, 1, 1) => (16, 0, 0, 0),
        (CollectiveOp::AllReduce, 1, _) => (4, 6, 6, 0),
        (CollectiveOp::AllReduce, _, 1) => (0, 5, 4, 4),
        (CollectiveOp::AllReduce, _, _) => (3, 4, 3, 3),
        (CollectiveOp::ReduceScatter, 1, _) => (8, 8, 0, 0),
        (CollectiveOp::ReduceScatter, _, 1) => (0, 14, 0, 0),
        (CollectiveOp::ReduceScatter, _, _) => (6, 8, 0, 0),
        (_, 1, _) => (8, 0, 8, 0),
        (CollectiveOp::AllGather | CollectiveOp::Broadcast, _, _) => (5, 0, 5, 4),
        (CollectiveOp::AllToAll, _, _) => (7, 0, 7, 0),
    };
    StepWarps {
        push,
        reduce,
        collect,
        relay,
    }
}

/// The warps of each step if ranks store to each other's results. One warp only waits for stores of other ranks.
fn step_warps_to_results(op: CollectiveOp) -> StepWarps {
    let (push, reduce) = match op.reduces() {
        true => (7, 8),
        false => (15, 0),
    };
    StepWarps {
        push,
        reduce,
        collect: 1,
        relay: 0,
    }
}

/// Bytes that a rank with a full shard, or the root of a broadcast, moves in one call.
fn traffic(op_plan: &CollectivePlan, topology: Topology) -> Traffic {
    let (local_peers, nodes) = (
        u64::from(topology.local_world - 1),
        u64::from(topology.nodes),
    );
    let (shard, whole) = (op_plan.shard_vecs * VEC_BYTES, op_plan.bytes());
    let world = u64::from(topology.world());
    // The bytes that a rank sends in one step of shards. A step of parts sends an equal number of bytes.
    let step = local_peers * nodes * shard;
    let steps = u64::from(op_plan.config.op.reduces()) + u64::from(op_plan.config.op.gathers());
    let link_bytes = match (op_plan.owners, op_plan.protocol) {
        (Some(_), Protocol::Ll) => local_peers * whole,
        // Shards travel to their owners, and across nodes the root's own shard travels to all ranks.
        (Some(_), Protocol::Simple) if nodes == 1 => whole * local_peers.min(1),
        (Some(_), Protocol::Simple) => 2 * local_peers * shard,
        (None, _) if op_plan.reduces_all() => local_peers * whole,
        (None, _) => steps * step,
    };
    // Packets that are not added up have a flag beside each word.
    let words = match op_plan.protocol {
        Protocol::Ll if !op_plan.config.op.reduces() => 2,
        _ => 1,
    };
    let elems = |bytes: u64| bytes / op_plan.config.dtype.bytes();
    let epilogue = op_plan.config.epilogue;
    let more = u64::from(epilogue.residual) + u64::from(epilogue.normalises());
    let scales = op_plan.shape.m * epilogue.result_scales.of_row(op_plan.shape.n);
    let result =
        elems(whole) * op_plan.config.result_dtype().bytes() + scales * Dtype::Fp32.bytes();
    let (read, written) = match op_plan.config.op {
        CollectiveOp::AllReduce | CollectiveOp::Broadcast | CollectiveOp::AllToAll => {
            (whole, result)
        }
        CollectiveOp::AllGather => (shard, whole),
        CollectiveOp::ReduceScatter => (whole, shard),
    };
    Traffic {
        link_bytes: words * link_bytes,
        nic_bytes: steps * u64::from(topology.peers()) * put_shards(op_plan, topology) * shard,
        memory_bytes: read + written + more * whole,
        flops: if op_plan.config.op.reduces() {
            elems(shard) * (world - 1)
        } else {
            0
        },
        ..Traffic::default()
    }
}

fn finish(
    topology: Topology,
    device: &Device,
    op_plan: CollectivePlan,
    estimate_us: f64,
) -> BodyPlan<CollectivePlan> {
    let moved = traffic(&op_plan, topology);
    // No plan has to send more bytes than two steps of plain data.
    let least = traffic(
        &CollectivePlan {
            protocol: Protocol::Simple,
            shots: 0,
            ..op_plan.clone()
        },
        topology,
    );
    let (threads, grid_ctas) = match op_plan.protocol {
        Protocol::Ll => (LL_THREADS, ll_ctas(&op_plan, device)),
        Protocol::Simple => (THREADS, device.sm_count),
    };
    let roles = Roles::new(&op_plan, topology);
    BodyPlan {
        id: layout::id(&op_plan, device.arch, topology),
        launch: Launch {
            threads,
            grid_ctas,
            cluster_ctas: 1,
            registers: device.arch.spec().even_registers(threads),
        },
        roles: roles.all(threads, grid_ctas),
        call: roles.call_steps(),
        smem: Vec::new(),
        comm_smem: Vec::new(),
        smem_bytes: 0,
        workspace: memory::workspace(&op_plan, topology),
        copies: None,
        network: network(&op_plan, topology),
        operands: layout::operands(&op_plan, topology.world()),
        args: layout::args(&op_plan, topology),
        bound: Bound::new(&least, device),
        traffic: moved,
        estimate_us,
        op_plan,
    }
}

/// A vector for each thread, or a part of a row for each warp, on at most all SMs. If the SMs suffice, the last warp of each
/// CTA has no vectors, since its last thread counts the call meanwhile.
fn ll_ctas(op_plan: &CollectivePlan, device: &Device) -> u32 {
    let threads = match op_plan.norm {
        Some(norm) => 32 * op_plan.shape.m * u64::from(norm.warps),
        None => op_plan.vecs(),
    };
    let ctas = threads.div_ceil((LL_THREADS - 32).into());
    ctas.min(device.sm_count.into()) as u32
}

/// The shards that a rank puts to a rank of another node: its own shard, or one shard from each rank of its node.
fn put_shards(op_plan: &CollectivePlan, topology: Topology) -> u64 {
    match op_plan.config.op.exchanges() {
        true => topology.local_world.into(),
        false => 1,
    }
}

/// The puts that the kernel needs: each chunk of a shard crosses to every other node once in each step.
fn network(op_plan: &CollectivePlan, topology: Topology) -> Option<Network> {
    (topology.peers() > 0).then(|| Network {
        channels: op_plan.channels(),
        puts: (op_plan.shard_chunks().div_ceil(op_plan.put_chunks) * put_shards(op_plan, topology)
            + u64::from(op_plan.takes_rows())) as u32,
        put_bytes: op_plan.put_chunks * op_plan.chunk_vecs * VEC_BYTES,
    })
}
