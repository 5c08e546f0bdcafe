//! `combine`: what experts made of each token, weighted and summed, at the token's rank.
//!
//! A rank tells every other where its tokens' rows are and what each counts. Every rank adds up the rows that it has of a
//! token and sends one row of bf16; the token's rank adds those, in the order of ranks. A CTA makes one sum after the
//! other, its own and those for peers: rows come through a ring in shared memory, sums leave from shared memory, both by
//! TMA, so that nothing in flight needs a register or holds up a warp.
//!
//! What a rank tells is double-buffered by parity of the epoch: who starts epoch e has finished e-1, for which every peer
//! had begun e-1 and so finished e-2. Sums need one buffer: they are sent to a rank that has told of this epoch, and so
//! has finished the one before.

use super::{Body, KernelPlan, Region, Registers, Role, Spread, THREADS, Traffic, Workspace};
use crate::abi::{ArgKind, ArgLayout, Extent, FLAG_STRIDE_BYTES, Operand, OperandSpec};
use crate::config::{CombineConfig, CombineShape, Dtype, all_rows};
use crate::cost::{self, Bound};
use crate::device::Device;
use crate::spec::KernelSpec;
use crate::violation::{Field, Violations};
use serde::Serialize;

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
/// Own sums of a CTA, at least, unless parts were too short: the last ones leave SMs idle. With 16, rows of 1024 tokens were in
/// seven parts, and took twice as long as whole ones: the loading warp was the limit.
const SUMS_PER_CTA: u64 = 4;
/// Parts begin at lines of L2.
const LINE_BYTES: u64 = 128;
/// Words of each row in the ring and of each sum: see `about_row` of the template.
const ABOUT_BYTES: u32 = 32;
/// What a rank tells beside its choices.
pub const HEADER_WORDS: u64 = 8;
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

    /// Where tokens go if experts are chosen evenly.
    #[must_use]
    pub fn spread(&self, world: u32) -> Spread {
        let shape = self.shape;
        Spread::even(world, shape.experts, shape.top_k, shape.max_tokens)
    }
}

/// The plan; none while a size is not known.
pub(super) fn plan(
    spec: &KernelSpec,
    config: &CombineConfig,
    device: &Device,
) -> Option<Result<KernelPlan, Violations>> {
    let shape = config.shape()?;
    let world = spec.world();
    let rows = all_rows(world, shape.experts, shape.top_k, shape.max_tokens);
    let part_bytes = part_bytes(&shape, device);
    let room = device.smem_bytes.saturating_sub(fixed_bytes(MAX_STAGES));
    let body = CombinePlan {
        config: *config,
        shape,
        max_rows: config.max_rows.map_or(rows, |most| rows.min(most.into())),
        part_bytes,
        stages: (room / part_bytes).saturating_sub(OUTS).min(MAX_STAGES),
    };
    if body.stages < 2 {
        return Some(Err(no_room(part_bytes, device)));
    }
    let (smem, smem_bytes) = smem(&body);
    let traffic = traffic(&body, world);
    let bound = Bound::new(&traffic, device);
    Some(Ok(KernelPlan {
        id: id(&body, world),
        spec: spec.clone(),
        device: device.clone(),
        threads: THREADS,
        grid_ctas: device.sm_count,
        roles: roles(device.sm_count),
        smem,
        smem_bytes,
        workspace: workspace(&body, world),
        copies: None,
        network: None,
        operands: operands(&body),
        args: args(),
        registers: REGISTERS,
        estimate_us: cost::combine_us(&bound),
        bound,
        traffic,
        body: Body::Combine(body),
    }))
}

/// Whole rows, if they are short and many.
fn part_bytes(shape: &CombineShape, device: &Device) -> u32 {
    let row_bytes = shape.hidden * ELEM_BYTES;
    let sums = SUMS_PER_CTA * u64::from(device.sm_count);
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
    let mut offset = 0;
    let mut region = |name, bytes: u32| {
        let region = Region {
            name,
            offset_bytes: u64::from(offset),
            bytes: u64::from(bytes),
        };
        offset += bytes;
        region
    };
    let regions = vec![
        region("rows", body.stages * body.part_bytes),
        region("out", OUTS * body.part_bytes),
        region("about", about_bytes(body.stages)),
        region("barriers", barrier_bytes(body.stages)),
    ];
    (regions, offset + SMEM_ALIGN)
}

fn traffic(body: &CombinePlan, world: u32) -> Traffic {
    let shape = body.shape;
    let spread = body.spread(world);
    let row_bytes = shape.hidden * ELEM_BYTES;
    let sent = (spread.sent_tokens * row_bytes as f64) as u64;
    let told = u64::from(world - 1) * body.choices() * 8;
    let rows = body.choices() + shape.max_tokens;
    Traffic {
        link_bytes: sent + told,
        nic_bytes: 0,
        memory_bytes: rows * row_bytes + 2 * sent,
        flops: 2 * body.choices() * shape.hidden,
    }
}

fn id(body: &CombinePlan, world: u32) -> String {
    let CombineShape {
        experts,
        top_k,
        max_tokens,
        hidden,
    } = body.shape;
    format!(
        "{}_sm90a_g{world}_e{experts}k{top_k}t{max_tokens}r{}h{hidden}_p{}s{}",
        body.config.op,
        body.max_rows,
        body.parts(),
        body.stages
    )
}

fn roles(grid_ctas: u32) -> Vec<Role> {
    let role = |name, warps, about: &str| Role {
        name,
        ctas: (0, grid_ctas),
        warps,
        about: about.into(),
    };
    vec![
        role("load", (0, 1), "rows of sums to shared memory"),
        role("store", (1, 1 + OUTS), "sums to C and to peers"),
        role("math", (1 + OUTS, THREADS / 32), "sums in fp32"),
    ]
}

fn workspace(body: &CombinePlan, world: u32) -> Workspace {
    let ranks = u64::from(world);
    if world == 1 {
        return Workspace::new([]);
    }
    Workspace::new([
        ("fault", FLAG_STRIDE_BYTES),
        ("told", ranks * FLAG_STRIDE_BYTES),
        ("headers", 2 * ranks * HEADER_WORDS * 4),
        ("choices", 2 * ranks * body.choices() * 8),
        (
            "flags",
            ranks * body.shape.max_tokens * body.parts() * FLAG_STRIDE_BYTES,
        ),
        ("partials", ranks * body.shape.max_tokens * body.row_bytes()),
    ])
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

fn args() -> ArgLayout {
    ArgLayout::new(vec![
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
    ])
}
