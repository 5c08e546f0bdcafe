//! [`KernelConfig`]: what a person writes, in TOML, in `#[fused_kernel(...)]` or as flags. Nothing in it is checked yet.

mod attention;
mod combine;
mod dispatch;
mod gemm;
mod markdown;
mod option;
mod option_type;
mod table;

use option_type::{OptionType, choices};
use serde::{Deserialize, Serialize};
use std::fmt;

pub use attention::{AttentionOp, Layout, Placement, Scale};
pub use combine::CombineOp;
pub use dispatch::{DispatchOp, all_rows};
pub use gemm::{Activation, BLayout, GemmOp, Tile};
pub use markdown::OptionTable;
pub use option::{Limits, OptionSpec, Options, Values, Written};
pub use table::{
    AttentionConfig, AttentionShape, AttentionTuning, CombineConfig, CombineShape, DispatchConfig,
    DispatchShape, Epilogue, Field, GemmConfig, GemmShape, KernelConfig, Tuning,
};

choices! {
    /// The operator: what is computed, and what crosses between ranks. See `design.md` §1.
    #[non_exhaustive]
    pub enum Op {
        /// `C[M,N] = AllGather(A)[M,K] · B`: rank r holds rows r of A and its own B.
        AgGemm = "ag_gemm",
        /// `C = Σ_r A_r[M,K] · B_r`, of which rank r keeps rows r: a reduce-scatter. M, N and K are those of every A_r, B_r.
        ///
        /// A rank adds what its peers computed of its rows, rounded to bf16, to its own sums in fp32, always in the same
        /// order, and rounds once more: the same bits each time, and fewer roundings than a GEMM and NCCL make.
        GemmRs = "gemm_rs",
        /// The same sum, all of `C[M,N]` on every rank, with the same bits on all of them.
        GemmAr = "gemm_ar",
        /// `O = softmax(scale · Q Kᵀ) V` over a whole sequence of which each rank has rows of Q, K and V, exactly; rank r gets
        /// its rows of O, and the logarithms of the sums of exponentials (LSE).
        RingAttention = "ring_attention",
        /// Each token goes to the ranks of its experts, which multiply it by each expert's weight: rows by expert, those of an
        /// expert by source rank and token. Says also where they are, for [`Self::Combine`].
        DispatchGemm = "dispatch_gemm",
        /// The weighted sum of what experts made of each token, at the token's rank. Sums are in fp32 and in the same order
        /// each time; what one rank's experts made of a token travels as one row of bf16.
        Combine = "combine",
    }
}

impl Op {
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

    /// The options of its kernels, the operator first.
    #[must_use]
    pub fn options(self) -> Vec<OptionSpec> {
        let mut options = KernelConfig::new(1, self.problem()).options(None);
        options.sort_by_key(|option| option.field != Field::Op);
        options
    }

    /// Whether a person may write `field` of a kernel of this operator.
    #[must_use]
    pub fn takes(self, field: Field) -> bool {
        self.options().iter().any(|option| option.field == field)
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

choices! {
    /// What moves bytes to the peers of a node.
    pub enum Transfer {
        /// Communication CTAs of the kernel load each chunk once and store it to every peer.
        SmPush = "sm_push",
        /// The copy engines push chunks; the kernel rings a doorbell, a host thread enqueues the copies.
        CopyEngine = "copy_engine",
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

/// The same of each kind of problem.
macro_rules! each {
    ($of:expr, $value:ident => $result:expr) => {
        match $of {
            Self::Gemm($value) => $result,
            Self::Attention($value) => $result,
            Self::Dispatch($value) => $result,
            Self::Combine($value) => $result,
        }
    };
}

macro_rules! from_each {
    ($($Enum:ident: $($Variant:ident($Type:ident)),+;)+) => {$($(
        impl From<$Type> for $Enum {
            fn from(value: $Type) -> Self {
                Self::$Variant(value)
            }
        }
    )+)+};
}
from_each! {
    Problem: Gemm(GemmConfig), Attention(AttentionConfig), Dispatch(DispatchConfig), Combine(CombineConfig);
    Shape: Gemm(GemmShape), Attention(AttentionShape), Dispatch(DispatchShape), Combine(CombineShape);
}

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

    /// Its dimensions, in the order in which `prepare` takes their sizes.
    #[must_use]
    pub fn dims(&self) -> Vec<(Field, Dim)> {
        each!(self, config => config.dims())
    }

    /// The same, to be changed.
    pub fn dims_mut(&mut self) -> Vec<(Field, &mut Dim)> {
        each!(self, config => config.dims_mut())
    }

    /// Its shape, if no dimension is dynamic.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        each!(self, config => config.shape().map(Shape::from))
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

/// The operator, and the options of its variant: their places in TOML are not within another.
impl Options for Problem {
    fn options(&self, _: Option<&'static str>) -> Vec<OptionSpec> {
        let place = ("KernelConfig", None);
        let mut all = vec![OptionSpec::new::<Op>(
            Field::Op,
            place,
            &["The operator."],
            None,
        )];
        all.extend(each!(self, config => config.options(None)));
        all
    }

    /// The operator is only checked: the problem is of it already.
    fn assign(&mut self, field: Field, written: &dyn Written) -> Result<bool, String> {
        match field {
            Field::Op => Op::read(written).map(|_| true),
            _ => each!(self, config => config.assign(field, written)),
        }
    }

    fn literal(&self) -> String {
        let variant = match self {
            Self::Gemm(_) => "Gemm",
            Self::Attention(_) => "Attention",
            Self::Dispatch(_) => "Dispatch",
            Self::Combine(_) => "Combine",
        };
        format!(
            "::mkernel::Problem::{variant}({})",
            each!(self, config => config.literal())
        )
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
        each!(self, shape => shape.size(field))
    }
}

impl KernelConfig {
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
