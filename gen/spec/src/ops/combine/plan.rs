//! `combine`: the weighted sums of the experts' results, on the rank of each token.
//!
//! Each rank sends the top-k entries of its tokens, which are row indices and weights, to all other ranks of its node in
//! packets that carry the mark of the call. Each rank adds up its rows of a token and sends the sum to the token's rank
//! as one row of elements. The token's rank adds these sums in the order of ranks. A CTA computes one sum after the
//! other, for its own rank and for peers. Rows reach shared memory by TMA through a pipeline of stages, and sums leave
//! shared memory by TMA, so data in flight occupies no registers and blocks no warp.
//!
//! Packets are double-buffered by parity of the epoch. A rank that starts epoch e has finished e-1, for which every
//! peer had started e-1 and thus finished e-2, the last reader of the buffer that e writes. Sums need one buffer, since
//! they are sent only to a rank whose packets of this epoch have arrived, and which has therefore finished the previous
//! call.
//!
//! Sums of ranks with few tokens pass through no shared memory. Warps add up rows in registers and send partial sums as Lamport
//! packets. If no rank can have more tokens, a kernel has no other form of sums.
//!
//! `internode` describes several nodes.

use super::config::{CombineConfig, CombineShape};
use super::op_plan::{
    CombinePlan, InternodeCombine, LOW_LATENCY_TOKENS, LOW_LATENCY_TOKENS_ALONE, SumPipeline,
    row_bytes,
};
use super::roles::Roles;
use super::{cost, internode, memory};
use crate::abi::{ArgKind, ArgLayout, Extent, Operand, OperandSpec};
use crate::arch::Arch;
use crate::config::{Dtype, Field};
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::ops::dispatch::all_rows;
use crate::parts::id::{id_prefix, part};
use crate::parts::network::common_args;
use crate::parts::{BodyPlan, Launch};
use crate::roofline::{Bound, Traffic};
use crate::topology::Topology;

/// The most stages. To saturate memory, an SM needs 40 KiB in flight (1.2 µs at 33 GB/s), and another 40 KiB wait to be added.
const MAX_STAGES: u32 = 16;
/// The longest part of a row that is a stage. Fourteen such parts fit into shared memory.
const MAX_PART_BYTES: u64 = 16 << 10;
/// The shortest part of a row. Shorter parts slow down the link and TMA.
const MIN_PART_BYTES: u64 = 2 << 10;
/// The size of a line of L2. Parts begin at lines.
const LINE_BYTES: u64 = 128;
/// A packet of the low-latency protocol: a top-k entry, or two other words, with their flags.
const PACKET_BYTES: u64 = 16;

/// The plan.
pub(crate) fn plan(
    config: &CombineConfig,
    shape: CombineShape,
    topology: Topology,
    device: &Device,
) -> Result<BodyPlan<CombinePlan>, Diagnostics> {
    let world = topology.world();
    let rows = all_rows(world, shape.experts, shape.top_k, shape.max_tokens);
    let low_latency_tokens = low_latency_tokens(config, &shape, topology);
    let has_pipeline = low_latency_tokens < shape.max_tokens;
    let pipeline =
        has_pipeline.then(|| pipeline(low_latency_tokens, config, &shape, (world, device)));
    let pipeline = pipeline.transpose()?;
    let mut op_plan = CombinePlan {
        arch: device.arch,
        config: *config,
        shape,
        max_rows: config.max_rows.map_or(rows, |most| rows.min(most.into())),
        low_latency_tokens,
        pipeline,
        internode: None,
    };
    op_plan.internode = InternodeCombine::new(&op_plan, topology);
    if let Some(internode) = &op_plan.internode {
        internode.check(&op_plan, device)?;
    }
    let (smem, smem_bytes) = memory::smem(low_latency_tokens, pipeline, world);
    let traffic = traffic(&op_plan, topology);
    let bound = Bound::new(&traffic, device);
    let roles = Roles::new(&op_plan, topology);
    Ok(BodyPlan {
        id: id(&op_plan, device.arch, topology),
        launch: Launch {
            threads: device.arch.spec().threads(),
            grid_ctas: device.sm_count,
            cluster_ctas: 1,
            registers: device
                .arch
                .spec()
                .even_registers(device.arch.spec().threads()),
        },
        roles: roles.all(device.sm_count),
        call: roles.call_steps(),
        smem,
        comm_smem: Vec::new(),
        smem_bytes,
        workspace: memory::workspace(&op_plan, topology),
        copies: None,
        network: op_plan
            .internode
            .as_ref()
            .map(|internode| internode.network(&op_plan)),
        operands: operands(&op_plan),
        args: args(topology),
        estimate_us: cost::combine_us(&bound, device),
        bound,
        traffic,
        op_plan,
    })
}

/// The most tokens whose sums travel in packets; 0 across nodes, since packets travel over NVLink.
fn low_latency_tokens(config: &CombineConfig, shape: &CombineShape, topology: Topology) -> u64 {
    let wanted = config.low_latency_tokens.unwrap_or(match topology.world() {
        1 => LOW_LATENCY_TOKENS_ALONE,
        _ => LOW_LATENCY_TOKENS,
    });
    match topology.nodes {
        1 => shape.max_tokens.min(wanted.into()),
        _ => 0,
    }
}

/// The largest number of stages for which there is room.
///
/// # Errors
/// Shared memory that has no room for two stages.
fn pipeline(
    low_latency_tokens: u64,
    config: &CombineConfig,
    shape: &CombineShape,
    (world, device): (u32, &Device),
) -> Result<SumPipeline, Diagnostics> {
    let part_bytes = part_bytes(row_bytes(config, shape), shape.max_tokens, device);
    let with = |stages| SumPipeline { part_bytes, stages };
    let needed_bytes = |pipeline| memory::smem(low_latency_tokens, Some(pipeline), world).1;
    let fits = |pipeline: &SumPipeline| needed_bytes(*pipeline) <= device.smem_bytes;
    (2..=MAX_STAGES)
        .rev()
        .map(with)
        .find(fits)
        .ok_or_else(|| no_room(part_bytes, needed_bytes(with(2)), device))
}

/// Bytes of a part: whole rows, if rows are short and many. Otherwise rows are divided into the largest number of parts with which no
/// SM has two parts of own sums (`docs/performance.md#parts-of-rows`).
fn part_bytes(row_bytes: u64, max_tokens: u64, device: &Device) -> u32 {
    let wanted = u64::from(device.sm_count) / max_tokens;
    let wanted = wanted.min(row_bytes / MIN_PART_BYTES);
    let parts = wanted.max(row_bytes.div_ceil(MAX_PART_BYTES)).max(1);
    match parts {
        1 => row_bytes as u32,
        _ => row_bytes.div_ceil(parts).next_multiple_of(LINE_BYTES) as u32,
    }
}

fn no_room(part_bytes: u32, needed_bytes: u32, device: &Device) -> Diagnostics {
    let mut found = Diagnostics::default();
    found.push(
        Field::HIDDEN,
        format!(
            "two stages of {part_bytes} bytes need {needed_bytes} bytes of shared memory of {} ({})",
            device.smem_bytes, device.name
        ),
        "use a GPU with more",
    );
    found
}

fn traffic(op_plan: &CombinePlan, topology: Topology) -> Traffic {
    let shape = op_plan.shape;
    let routing = op_plan.expected_routing(topology);
    let row_bytes = op_plan.row_bytes() as f64;
    let (sent, put) = (
        routing.sent_tokens * row_bytes,
        routing.put_tokens * row_bytes,
    );
    let copies = topology.nodes * (topology.local_world - 1);
    let packets = u64::from(copies) * op_plan.choices() * PACKET_BYTES;
    let listed = (routing.put_tokens * (shape.top_k * internode::CHOICE_BYTES) as f64) as u64;
    let rows = op_plan.choices() + shape.max_tokens;
    Traffic {
        link_bytes: sent as u64 + packets,
        nic_bytes: put as u64 + listed,
        // Data that is put is written, read by the NIC, written by the other NIC, and read.
        memory_bytes: rows * op_plan.row_bytes() + 2 * sent as u64 + 4 * put as u64,
        flops: 2 * op_plan.choices() * shape.hidden,
        ..Traffic::default()
    }
}

fn id(op_plan: &CombinePlan, arch: Arch, topology: Topology) -> String {
    let CombineShape {
        experts,
        top_k,
        max_tokens,
        hidden,
    } = op_plan.shape;
    let chunks = op_plan
        .internode
        .as_ref()
        .map(|internode| internode.chunks.id());
    let low_latency = match op_plan.low_latency_tokens {
        0 => String::new(),
        tokens => format!("_l{tokens}"),
    };
    let pipeline = op_plan
        .pipeline
        .map(|pipeline| format!("_p{}s{}", op_plan.parts(), pipeline.stages));
    let invariant = part(op_plan.config.batch_invariant, "_invariant");
    format!(
        "{}_e{experts}k{top_k}t{max_tokens}r{}h{hidden}{low_latency}{}{}{}{invariant}",
        id_prefix(op_plan.config.op, arch, topology),
        op_plan.max_rows,
        pipeline.unwrap_or_default(),
        chunks.unwrap_or_default(),
        op_plan.config.dtype.suffix()
    )
}

fn operands(op_plan: &CombinePlan) -> Vec<OperandSpec> {
    let (shape, dtype) = (op_plan.shape, op_plan.config.dtype);
    let matrix =
        |operand, rows| OperandSpec::new(operand, Extent::Fixed(rows), shape.hidden, dtype);
    vec![
        matrix(Operand::Rows, op_plan.max_rows),
        OperandSpec::vector(Operand::NumTokens, 1, Dtype::Int32),
        OperandSpec::vector(Operand::RowIndices, op_plan.choices(), Dtype::Int32),
        OperandSpec::vector(Operand::TopkWeights, op_plan.choices(), Dtype::Fp32),
        matrix(Operand::C, shape.max_tokens),
    ]
}

fn args(topology: Topology) -> ArgLayout {
    let mut kinds = vec![
        ("rows", ArgKind::Pointer(Operand::Rows)),
        ("row_bytes", ArgKind::RowStrideBytes(Operand::Rows)),
        ("num_tokens", ArgKind::Pointer(Operand::NumTokens)),
        ("row_indices", ArgKind::Pointer(Operand::RowIndices)),
        ("topk_weights", ArgKind::Pointer(Operand::TopkWeights)),
        ("c", ArgKind::Pointer(Operand::C)),
        ("c_row_bytes", ArgKind::RowStrideBytes(Operand::C)),
        ("workspaces", ArgKind::Workspaces),
        ("host", ArgKind::HostPage),
        ("deadline_ns", ArgKind::DeadlineNs),
        ("rank", ArgKind::Rank),
    ];
    kinds.extend(common_args(topology));
    ArgLayout::new(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(max_tokens: u64) -> u64 {
        let row_bytes = 7168 * Dtype::Bf16.bytes();
        let part_bytes = part_bytes(row_bytes, max_tokens, &Device::h200());
        row_bytes.div_ceil(part_bytes.into())
    }

    /// The numbers of parts that were the fastest of all measured numbers, or as fast as the fastest.
    #[test]
    fn few_tokens_have_rows_in_parts() {
        let parts = [16, 32, 64, 128, 256].map(parts);
        assert_eq!(parts, [7, 4, 2, 1, 1]);
    }
}
