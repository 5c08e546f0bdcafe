//! `combine`: what experts made of each token, weighted and summed, at the token's rank.
//!
//! A rank tells every other where its tokens' rows are and what each counts. Every rank adds up the rows that it has of a
//! token and sends one row of bf16; the token's rank adds those, in the order of ranks. How many tokens a rank has is told
//! by parity of the epoch: who starts epoch e has finished e-1, for which every peer had begun e-1 and so finished e-2.
//! Choices and rows need one buffer: who told of choices in the last epoch has the rows that came of them, and rows are
//! sent to a rank that has told of this epoch, and so has finished the one before.

use super::{Body, KernelPlan, Registers, Role, Spread, THREADS, Traffic, Workspace};
use crate::abi::{ArgKind, ArgLayout, Extent, FLAG_STRIDE_BYTES, Operand, OperandSpec};
use crate::config::{CombineConfig, CombineShape, Dtype, all_rows};
use crate::cost::{self, Bound};
use crate::device::Device;
use crate::spec::KernelSpec;
use crate::violation::Violations;
use serde::Serialize;

const ELEM_BYTES: u64 = 2;
/// Tokens under one flag, at most.
const BLOCK_TOKENS: u64 = 8;
/// Warps of a CTA that send; the others add up what comes. Adding reads and writes less than a quarter of what goes out.
const SEND_WARPS: u32 = 8;
/// What a rank tells beside its choices.
pub const HEADER_WORDS: u64 = 8;
/// Dynamic shared memory: a word by which a CTA agrees.
const SMEM_BYTES: u32 = 16;
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
    /// Tokens under one flag.
    pub block_tokens: u32,
    /// Warps of a CTA that send.
    pub send_warps: u32,
}

impl CombinePlan {
    /// Choices of a rank's tokens.
    #[must_use]
    pub const fn choices(&self) -> u64 {
        self.shape.max_tokens * self.shape.top_k
    }

    /// Flags of a rank's tokens.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.shape.max_tokens.div_ceil(self.block_tokens.into())
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
    let send_warps = if world > 1 { SEND_WARPS } else { 0 };
    let warps = u64::from(device.sm_count * (THREADS / 32 - send_warps));
    let body = CombinePlan {
        config: *config,
        shape,
        max_rows: config.max_rows.map_or(rows, |most| rows.min(most.into())),
        // Few tokens go to as many warps as there are.
        block_tokens: (shape.max_tokens / warps).clamp(1, BLOCK_TOKENS) as u32,
        send_warps,
    };
    let traffic = traffic(&body, world);
    let bound = Bound::new(&traffic, device);
    Some(Ok(KernelPlan {
        id: id(&body, world),
        spec: spec.clone(),
        device: device.clone(),
        threads: THREADS,
        grid_ctas: device.sm_count,
        roles: roles(&body, device.sm_count),
        smem: Vec::new(),
        smem_bytes: SMEM_BYTES,
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
        "{}_sm90a_g{world}_e{experts}k{top_k}t{max_tokens}r{}h{hidden}_b{}",
        body.config.op, body.max_rows, body.block_tokens
    )
}

fn roles(body: &CombinePlan, grid_ctas: u32) -> Vec<Role> {
    let role = |name, warps, about: &str| Role {
        name,
        ctas: (0, grid_ctas),
        warps,
        about: about.into(),
    };
    let mut roles = Vec::new();
    if body.send_warps > 0 {
        roles.push(role(
            "push",
            (0, body.send_warps),
            "own rows of the peers' tokens, added up",
        ));
    }
    roles.push(role(
        "collect",
        (body.send_warps, THREADS / 32),
        "sums of the own tokens",
    ));
    roles
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
        ("choices", ranks * body.choices() * 8),
        ("flags", ranks * body.blocks() * FLAG_STRIDE_BYTES),
        (
            "partials",
            ranks * body.shape.max_tokens * body.shape.hidden * ELEM_BYTES,
        ),
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
