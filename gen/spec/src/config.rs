//! [`KernelConfig`]: what a person writes, in TOML, in `#[fused_kernel(...)]` or as flags. Nothing in it is checked yet.

mod attention;
mod combine;
mod dispatch;
mod gemm;

use crate::violation::Field;
use serde::{Deserialize, Serialize};
use std::fmt;

pub use attention::{
    AttentionConfig, AttentionOp, AttentionShape, AttentionTuning, Layout, Placement, Scale,
};
pub use combine::{CombineConfig, CombineOp, CombineShape};
pub use dispatch::{DispatchConfig, DispatchOp, DispatchShape, all_rows};
pub use gemm::{Activation, BLayout, Epilogue, GemmConfig, GemmOp, GemmShape, Tile, Tuning};

/// The operator: what is computed, and what crosses between ranks. See `design.md` §1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Op {
    /// `C[M,N] = AllGather(A)[M,K] · B`: rank r holds rows r of A and its own B.
    AgGemm,
    /// `C = Σ_r A_r[M,K] · B_r`, of which rank r keeps rows r: a reduce-scatter. M, N and K are those of every A_r, B_r.
    ///
    /// A rank adds what its peers computed of its rows, rounded to bf16, to its own sums in fp32, always in the same
    /// order, and rounds once more: the same bits each time, and fewer roundings than a GEMM and NCCL make.
    GemmRs,
    /// The same sum, all of `C[M,N]` on every rank, with the same bits on all of them.
    GemmAr,
    /// `O = softmax(scale · Q Kᵀ) V` over a whole sequence of which each rank has rows of Q, K and V, exactly; rank r gets
    /// its rows of O, and the logarithms of the sums of exponentials (LSE).
    RingAttention,
    /// Each token goes to the ranks of its experts, which multiply it by each expert's weight: rows by expert, those of an
    /// expert by source rank and token. Says also where they are, for [`Self::Combine`].
    DispatchGemm,
    /// The weighted sum of what experts made of each token, at the token's rank. Sums are in fp32 and in the same order
    /// each time; what one rank's experts made of a token travels as one row of bf16.
    Combine,
}

impl Op {
    /// Every operator.
    pub const ALL: [Self; 6] = [
        Self::AgGemm,
        Self::GemmRs,
        Self::GemmAr,
        Self::RingAttention,
        Self::DispatchGemm,
        Self::Combine,
    ];

    /// The operator's name in every file, flag and symbol.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AgGemm => "ag_gemm",
            Self::GemmRs => "gemm_rs",
            Self::GemmAr => "gemm_ar",
            Self::RingAttention => "ring_attention",
            Self::DispatchGemm => "dispatch_gemm",
            Self::Combine => "combine",
        }
    }

    /// The operator called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    /// The operator with nothing decided: every size dynamic, all else as usual.
    #[must_use]
    pub fn problem(self) -> Problem {
        let gemm = |op| GemmConfig::new(op).into();
        match self {
            Self::AgGemm => gemm(GemmOp::AgGemm),
            Self::GemmRs => gemm(GemmOp::GemmRs),
            Self::GemmAr => gemm(GemmOp::GemmAr),
            Self::RingAttention => AttentionConfig::new(AttentionOp::RingAttention).into(),
            Self::DispatchGemm => DispatchConfig::new(DispatchOp::DispatchGemm).into(),
            Self::Combine => CombineConfig::new(CombineOp::Combine).into(),
        }
    }

    /// Whether a person may write `field` of a kernel of this operator.
    #[must_use]
    pub fn takes(self, field: Field) -> bool {
        KernelConfig::FIELDS.contains(&field) || self.problem().fields().contains(&field)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A dimension: known when the kernel is declared, or given at the first call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    /// Known now.
    Static(u64),
    /// Given at the first call; the kernel is specialised then. Written `"dynamic"`.
    Dynamic(DynamicWord),
}

/// The word `"dynamic"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DynamicWord {
    /// `"dynamic"`
    Dynamic,
}

impl Dim {
    /// A dimension that is given at the first call.
    pub const DYNAMIC: Self = Self::Dynamic(DynamicWord::Dynamic);

    /// The size, if it is known.
    #[must_use]
    pub const fn fixed(self) -> Option<u64> {
        match self {
            Self::Static(size) => Some(size),
            Self::Dynamic(_) => None,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(size) => write!(f, "{size}"),
            Self::Dynamic(_) => f.write_str("dynamic"),
        }
    }
}

/// What moves bytes to the peers of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transfer {
    /// Communication CTAs of the kernel load each chunk once and store it to every peer.
    SmPush,
    /// The copy engines push chunks; the kernel rings a doorbell, a host thread enqueues the copies.
    CopyEngine,
}

impl Transfer {
    /// Every way.
    pub const ALL: [Self; 2] = [Self::SmPush, Self::CopyEngine];

    /// `sm_push` or `copy_engine`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SmPush => "sm_push",
            Self::CopyEngine => "copy_engine",
        }
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an element of a matrix is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 2 bytes, 8 bits of mantissa.
    #[default]
    Bf16,
    /// 4 bytes.
    Fp32,
    /// 4 bytes: numbers of experts and rows.
    Int32,
}

impl Dtype {
    /// What a product can be.
    pub const FLOATS: [Self; 2] = [Self::Bf16, Self::Fp32];

    /// `bf16`, `fp32` or `int32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp32 => "fp32",
            Self::Int32 => "int32",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bf16 => 2,
            Self::Fp32 | Self::Int32 => 4,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The dimensions of a problem, by field and in the order in which `prepare` takes their sizes: of a configuration, where
/// they may be dynamic, and of the shape that has them all. Each is a field of both structs, by its own name.
macro_rules! dimensions {
    ($config:ident, $shape:ident: $($field:ident $name:ident),+) => {
        impl $config {
            /// The dimensions, in the order in which `prepare` takes their sizes.
            #[must_use]
            pub fn dims(&self) -> Vec<(Field, Dim)> {
                vec![$((Field::$field, self.$name)),+]
            }

            /// The same, to be changed.
            pub fn dims_mut(&mut self) -> Vec<(Field, &mut Dim)> {
                vec![$((Field::$field, &mut self.$name)),+]
            }

            /// The shape, if no dimension is dynamic.
            #[must_use]
            pub fn shape(&self) -> Option<$shape> {
                Some($shape { $($name: self.$name.fixed()?),+ })
            }
        }

        impl $shape {
            /// The size of a dimension; none if the problem does not have it.
            #[must_use]
            pub const fn size(&self, field: Field) -> Option<u64> {
                match field {
                    $(Field::$field => Some(self.$name),)+
                    _ => None,
                }
            }
        }
    };
}
use dimensions;

/// What is computed: one variant for operators that are declared alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Problem {
    /// A GEMM, and what crosses between ranks before or after it.
    Gemm(GemmConfig),
    /// Attention over a sequence that is spread over ranks.
    Attention(AttentionConfig),
    /// Tokens to their experts.
    Dispatch(DispatchConfig),
    /// What experts made of them, back.
    Combine(CombineConfig),
}

impl Problem {
    /// The operator.
    #[must_use]
    pub const fn op(&self) -> Op {
        match self {
            Self::Gemm(config) => config.op.op(),
            Self::Attention(config) => match config.op {
                AttentionOp::RingAttention => Op::RingAttention,
            },
            Self::Dispatch(config) => match config.op {
                DispatchOp::DispatchGemm => Op::DispatchGemm,
            },
            Self::Combine(config) => match config.op {
                CombineOp::Combine => Op::Combine,
            },
        }
    }

    /// The fields that a person may write of it, beside those of every kernel: [`KernelConfig::FIELDS`].
    #[must_use]
    pub const fn fields(&self) -> &'static [Field] {
        match self {
            Self::Gemm(_) => &GemmConfig::FIELDS,
            Self::Attention(_) => &AttentionConfig::FIELDS,
            Self::Dispatch(_) => &DispatchConfig::FIELDS,
            Self::Combine(_) => &CombineConfig::FIELDS,
        }
    }

    /// Its dimensions, in the order in which `prepare` takes their sizes.
    #[must_use]
    pub fn dims(&self) -> Vec<(Field, Dim)> {
        match self {
            Self::Gemm(config) => config.dims(),
            Self::Attention(config) => config.dims(),
            Self::Dispatch(config) => config.dims(),
            Self::Combine(config) => config.dims(),
        }
    }

    /// The same, to be changed.
    pub fn dims_mut(&mut self) -> Vec<(Field, &mut Dim)> {
        match self {
            Self::Gemm(config) => config.dims_mut(),
            Self::Attention(config) => config.dims_mut(),
            Self::Dispatch(config) => config.dims_mut(),
            Self::Combine(config) => config.dims_mut(),
        }
    }

    /// Its shape, if no dimension is dynamic.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        match self {
            Self::Gemm(config) => config.shape().map(Shape::Gemm),
            Self::Attention(config) => config.shape().map(Shape::Attention),
            Self::Dispatch(config) => config.shape().map(Shape::Dispatch),
            Self::Combine(config) => config.shape().map(Shape::Combine),
        }
    }

    /// The GEMM, if it is one.
    #[must_use]
    pub const fn gemm(&self) -> Option<&GemmConfig> {
        match self {
            Self::Gemm(config) => Some(config),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub const fn gemm_mut(&mut self) -> Option<&mut GemmConfig> {
        match self {
            Self::Gemm(config) => Some(config),
            _ => None,
        }
    }
}

impl From<GemmConfig> for Problem {
    fn from(config: GemmConfig) -> Self {
        Self::Gemm(config)
    }
}

impl From<DispatchConfig> for Problem {
    fn from(config: DispatchConfig) -> Self {
        Self::Dispatch(config)
    }
}

impl From<CombineConfig> for Problem {
    fn from(config: CombineConfig) -> Self {
        Self::Combine(config)
    }
}

impl From<AttentionConfig> for Problem {
    fn from(config: AttentionConfig) -> Self {
        Self::Attention(config)
    }
}

/// Sizes of all dimensions of a [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Shape {
    /// Of a GEMM.
    Gemm(GemmShape),
    /// Of attention.
    Attention(AttentionShape),
    /// Of dispatch.
    Dispatch(DispatchShape),
    /// Of combine.
    Combine(CombineShape),
}

impl Shape {
    /// The size of a dimension; none if the problem does not have it.
    #[must_use]
    pub const fn size(&self, field: Field) -> Option<u64> {
        match self {
            Self::Gemm(shape) => shape.size(field),
            Self::Attention(shape) => shape.size(field),
            Self::Dispatch(shape) => shape.size(field),
            Self::Combine(shape) => shape.size(field),
        }
    }
}

impl From<GemmShape> for Shape {
    fn from(shape: GemmShape) -> Self {
        Self::Gemm(shape)
    }
}

impl From<DispatchShape> for Shape {
    fn from(shape: DispatchShape) -> Self {
        Self::Dispatch(shape)
    }
}

impl From<CombineShape> for Shape {
    fn from(shape: CombineShape) -> Self {
        Self::Combine(shape)
    }
}

impl From<AttentionShape> for Shape {
    fn from(shape: AttentionShape) -> Self {
        Self::Attention(shape)
    }
}

const fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_one(nodes: &u32) -> bool {
    *nodes == 1
}

/// A kernel as a person asks for it. Its fields and the problem's stand side by side where it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelConfig {
    /// What to call it in listings; the kernel's own id if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Ranks, one GPU each: on one node 1, 2, 4 or 8; on several up to 8 of each.
    pub world: u32,
    /// Nodes, with as many ranks each, numbered node by node.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub nodes: u32,
    /// What it computes.
    #[serde(flatten)]
    pub problem: Problem,
}

impl KernelConfig {
    /// The fields of every kernel; see [`Problem::fields`] for the others.
    pub const FIELDS: [Field; 4] = [Field::Op, Field::Name, Field::World, Field::Nodes];

    /// A kernel for one node, without a name.
    #[must_use]
    pub fn new(world: u32, problem: impl Into<Problem>) -> Self {
        Self {
            name: None,
            world,
            nodes: 1,
            problem: problem.into(),
        }
    }

    /// The operator.
    #[must_use]
    pub const fn op(&self) -> Op {
        self.problem.op()
    }
}
