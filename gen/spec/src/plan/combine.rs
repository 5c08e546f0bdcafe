//! `combine`: what experts made of each token, weighted and summed, at the token's rank.
//!
//! A rank tells every other where its tokens' rows are and what each counts, in words that carry the epoch: whoever finds
//! them has them. Every rank adds up the rows that it has of a token and sends one row of bf16; the token's rank adds those,
//! in the order of ranks. A CTA makes one sum after the other, its own and those for peers: rows come through a ring in
//! shared memory, sums leave from shared memory, both by TMA, so that nothing in flight needs a register or holds up a warp.
//!
//! What a rank tells is double-buffered by parity of the epoch: who starts epoch e has finished e-1, for which every peer
//! had begun e-1 and so finished e-2. Sums need one buffer: they are sent to a rank that has told of this epoch, and so
//! has finished the one before.
//!
//! Across nodes see `across`.

mod across;

use super::{Body, KernelPlan, Region, Registers, Role, Spread, THREADS, Traffic, Workspace};
use crate::abi::{ArgKind, ArgLayout, Extent, FLAG_STRIDE_BYTES, Operand, OperandSpec};
use crate::config::{CombineConfig, CombineShape, Dtype, all_rows};
use crate::cost::{self, Bound};
use crate::device::Device;
use crate::spec::KernelSpec;
use crate::topology::Topology;
use crate::violation::{Field, Violations};
use serde::Serialize;

pub use across::{Lists, PACKET_HEADER_BYTES};

const ELEM_BYTES: u64 = 2;
/// Sums that have left the ring but not the CTA, a warp for each. One is on its way for 2 to 5 µs, in which 344 GB/s over
/// 132 SMs want 5 to 13 KiB.
pub const OUTS: u32 = 3;
/// The most stages of the ring. Memory wants 40 KiB under way in an SM (1.2 µs at 33 GB/s); as many rows again wait to be
/// added.
const MAX_STAGES: u32 = 16;
/// The longest part of a row that is a stage: fourteen fit.
const MAX_PART_BYTES: u64 = 16 << 10;
/// The shortest, with which neither the link nor TMA is much slower.
const MIN_PART_BYTES: u64 = 2 << 10;
/// Own sums of a CTA, at least, unless parts were too short: the last ones leave SMs idle. On one rank more pay, since no flag
/// follows each of them.
const SUMS_PER_CTA: u64 = 4;
const SUMS_PER_CTA_ALONE: u64 = 12;
/// Parts begin at lines of L2.
const LINE_BYTES: u64 = 128;
/// Words of each row in the ring and of each sum: see `about_row` of the template.
const ABOUT_BYTES: u32 = 32;
/// A choice as a rank tells it, beside epochs.
const TOLD_BYTES: u64 = 16;
/// Dynamic shared memory may start anywhere.
const SMEM_ALIGN: u32 = 128;
const REGISTERS: Registers = Registers {
    entry: 168,
    mover: 168,
    math: 168,
};

/// What only a plan of `combine` has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CombinePlan {
    /// What is computed.
    pub config: CombineConfig,
    /// Its sizes.
    pub shape: CombineShape,
    /// Rows of a rank, as of the operator that dispatched.
    pub max_rows: u64,
    /// Bytes of a row that are summed at a time, under one flag.
    pub part_bytes: u32,
    /// Parts in the ring of a CTA.
    pub stages: u32,
    /// What travels between nodes, if there are several.
    pub lists: Option<Lists>,
}

impl CombinePlan {
    /// Choices of a rank's tokens.
    #[must_use]
    pub const fn choices(&self) -> u64 {
        self.shape.max_tokens * self.shape.top_k
    }

    /// Bytes of a row.
    #[must_use]
    pub const fn row_bytes(&self) -> u64 {
        self.shape.hidden * ELEM_BYTES
    }

    /// Parts of a row.
    #[must_use]
    pub fn parts(&self) -> u64 {
        self.row_bytes().div_ceil(self.part_bytes.into())
    }

    /// Bytes of what a rank tells before its choices: across nodes also a fault.
    #[must_use]
    pub const fn header_bytes(&self) -> u64 {
        match self.lists {
            None => TOLD_BYTES,
            Some(_) => 3 * TOLD_BYTES,
        }
    }

    /// Bytes of all that a rank tells.
    #[must_use]
    pub const fn told_bytes(&self) -> u64 {
        self.header_bytes() + self.choices() * TOLD_BYTES
    }

    /// The first CTAs of the launch only communicate: as many.
    #[must_use]
    pub const fn comm_ctas(&self) -> u32 {
        match self.lists {
            None => 0,
            Some(_) => 1,
        }
    }

    /// Where tokens go if experts are chosen evenly.
    #[must_use]
    pub fn spread(&self, topology: Topology) -> Spread {
        let shape = self.shape;
        Spread::across(topology, shape.experts, shape.top_k, shape.max_tokens)
    }
}

/// The plan; none while a size is not known.
pub(super) fn plan(
    spec: &KernelSpec,
    config: &CombineConfig,
    device: &Device,
) -> Option<Result<KernelPlan, Violations>> {
    let shape = config.shape()?;
    let (world, topology) = (spec.world(), spec.topology());
    let rows = all_rows(world, shape.experts, shape.top_k, shape.max_tokens);
    let part_bytes = part_bytes(&shape, world, device);
    let room = device.smem_bytes.saturating_sub(fixed_bytes(MAX_STAGES));
    let mut body = CombinePlan {
        config: *config,
        shape,
        max_rows: config.max_rows.map_or(rows, |most| rows.min(most.into())),
        part_bytes,
        stages: (room / part_bytes).saturating_sub(OUTS).min(MAX_STAGES),
        lists: None,
    };
    if body.stages < 2 {
        return Some(Err(no_room(part_bytes, device)));
    }
    body.lists = Lists::new(&body, topology);
    if let Some(lists) = &body.lists
        && let Err(found) = lists.check(&body, device)
    {
        return Some(Err(found));
    }
    let (smem, smem_bytes) = smem(&body);
    let traffic = traffic(&body, topology);
    let bound = Bound::new(&traffic, device);
    Some(Ok(KernelPlan {
        id: id(&body, topology),
        spec: spec.clone(),
        device: device.clone(),
        threads: THREADS,
        grid_ctas: device.sm_count,
        roles: roles(&body, device.sm_count),
        smem,
        comm_smem: Vec::new(),
        smem_bytes,
        workspace: workspace(&body, topology),
        copies: None,
        network: body.lists.as_ref().map(|lists| lists.network(&body)),
        operands: operands(&body),
        args: args(topology),
        registers: REGISTERS,
        estimate_us: cost::combine_us(&bound),
        bound,
        traffic,
        body: Body::Combine(body),
    }))
}

/// Whole rows, if they are short and many.
fn part_bytes(shape: &CombineShape, world: u32, device: &Device) -> u32 {
    let row_bytes = shape.hidden * ELEM_BYTES;
    let per_cta = if world == 1 {
        SUMS_PER_CTA_ALONE
    } else {
        SUMS_PER_CTA
    };
    let sums = per_cta * u64::from(device.sm_count);
    let wanted = sums
        .div_ceil(shape.max_tokens)
        .min(row_bytes / MIN_PART_BYTES);
    let parts = wanted.max(row_bytes.div_ceil(MAX_PART_BYTES)).max(1);
    match parts {
        1 => row_bytes as u32,
        _ => row_bytes.div_ceil(parts).next_multiple_of(LINE_BYTES) as u32,
    }
}

fn no_room(part_bytes: u32, device: &Device) -> Violations {
    let mut found = Violations::default();
    let needed = (2 + OUTS) * part_bytes + fixed_bytes(2);
    found.push(
        Field::Hidden,
        format!(
            "two stages of {part_bytes} bytes need {needed} bytes of shared memory of {} ({})",
            device.smem_bytes, device.name
        ),
        "use a GPU with more",
    );
    found
}

/// Full and free of each stage and sum.
const fn barrier_bytes(stages: u32) -> u32 {
    (stages + OUTS) * 2 * 8
}

/// What is known of each stage and sum, and a word by which a CTA agrees.
const fn about_bytes(stages: u32) -> u32 {
    (stages + OUTS) * ABOUT_BYTES + 16
}

/// Shared memory beside rows and sums.
const fn fixed_bytes(stages: u32) -> u32 {
    barrier_bytes(stages) + about_bytes(stages) + SMEM_ALIGN
}

fn smem(body: &CombinePlan) -> (Vec<Region>, u32) {
    let parts = [
        ("rows", body.stages * body.part_bytes),
        ("out", OUTS * body.part_bytes),
        ("about", about_bytes(body.stages)),
        ("barriers", barrier_bytes(body.stages)),
    ];
    let (regions, bytes) = Region::in_a_row(1, parts);
    (regions, bytes as u32 + SMEM_ALIGN)
}

fn traffic(body: &CombinePlan, topology: Topology) -> Traffic {
    let shape = body.shape;
    let spread = body.spread(topology);
    let row_bytes = body.row_bytes() as f64;
    let (sent, put) = (
        spread.sent_tokens * row_bytes,
        spread.put_tokens * row_bytes,
    );
    let tells = topology.nodes * (topology.local_world - 1);
    let told = u64::from(tells) * body.choices() * TOLD_BYTES;
    let listed = (spread.put_tokens * (shape.top_k * across::CHOICE_BYTES) as f64) as u64;
    let rows = body.choices() + shape.max_tokens;
    Traffic {
        link_bytes: sent as u64 + told,
        nic_bytes: put as u64 + listed,
        // What is put is written, read by the NIC, written by the other, and read.
        memory_bytes: rows * body.row_bytes() + 2 * sent as u64 + 4 * put as u64,
        flops: 2 * body.choices() * shape.hidden,
    }
}

fn id(body: &CombinePlan, topology: Topology) -> String {
    let CombineShape {
        experts,
        top_k,
        max_tokens,
        hidden,
    } = body.shape;
    format!(
        "{}_sm90a_g{topology}_e{experts}k{top_k}t{max_tokens}r{}h{hidden}_p{}s{}",
        body.config.op,
        body.max_rows,
        body.parts(),
        body.stages
    )
}

fn roles(body: &CombinePlan, grid_ctas: u32) -> Vec<Role> {
    let role = |name, ctas, warps, about: &str| Role {
        name,
        ctas,
        warps,
        about: about.into(),
    };
    let comm = (0, body.comm_ctas());
    let adding = (body.comm_ctas(), grid_ctas);
    let network = body.lists.as_ref().map(|_| {
        role(
            "put",
            comm,
            (0, THREADS / 32),
            "arrivals; lists and sums to puts; other nodes' lists to this node's ranks",
        )
    });
    let rest = [
        role("load", adding, (0, 1), "rows of sums to shared memory"),
        role("store", adding, (1, 1 + OUTS), "sums to C and to peers"),
        role("math", adding, (1 + OUTS, THREADS / 32), "sums in fp32"),
    ];
    network.into_iter().chain(rest).collect()
}

fn workspace(body: &CombinePlan, topology: Topology) -> Workspace {
    let ranks = u64::from(topology.world());
    if ranks == 1 {
        return Workspace::new([]);
    }
    // Of each rank of this node, for this one's number on each.
    let rows = ranks * body.shape.max_tokens;
    let told = ("told", 2 * ranks * body.told_bytes());
    let flags = ("flags", rows * body.parts() * FLAG_STRIDE_BYTES);
    let partials = ("partials", rows * body.row_bytes());
    let lists = body.lists.iter();
    let across = lists.flat_map(|lists| lists.regions(body, topology));
    Workspace::new([told, flags].into_iter().chain(across).chain([partials]))
}

fn operands(body: &CombinePlan) -> Vec<OperandSpec> {
    let shape = body.shape;
    let matrix =
        |operand, rows| OperandSpec::new(operand, Extent::Fixed(rows), shape.hidden, Dtype::Bf16);
    vec![
        matrix(Operand::Rows, body.max_rows),
        OperandSpec::vector(Operand::Count, 1, Dtype::Int32),
        OperandSpec::vector(Operand::Places, body.choices(), Dtype::Int32),
        OperandSpec::vector(Operand::Gates, body.choices(), Dtype::Fp32),
        matrix(Operand::C, shape.max_tokens),
    ]
}

fn args(topology: Topology) -> ArgLayout {
    let mut kinds = vec![
        ("rows", ArgKind::Pointer(Operand::Rows)),
        ("row_bytes", ArgKind::RowStrideBytes(Operand::Rows)),
        ("count", ArgKind::Pointer(Operand::Count)),
        ("places", ArgKind::Pointer(Operand::Places)),
        ("gates", ArgKind::Pointer(Operand::Gates)),
        ("c", ArgKind::Pointer(Operand::C)),
        ("c_row_bytes", ArgKind::RowStrideBytes(Operand::C)),
        ("workspaces", ArgKind::Workspaces),
        ("host", ArgKind::HostPage),
        ("deadline_ns", ArgKind::DeadlineNs),
        ("rank", ArgKind::Rank),
    ];
    kinds.extend(super::common_args(topology));
    ArgLayout::new(kinds)
}
