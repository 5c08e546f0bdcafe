//! [`KernelConfig`]: what a person writes, in TOML, in `#[fused_kernel(...)]` or as flags. Nothing in it is checked yet.

use serde::{Deserialize, Serialize};
use std::fmt;

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
}

impl Op {
    /// Every operator.
    pub const ALL: [Self; 3] = [Self::AgGemm, Self::GemmRs, Self::GemmAr];

    /// The operator's name in every file, flag and symbol.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AgGemm => "ag_gemm",
            Self::GemmRs => "gemm_rs",
            Self::GemmAr => "gemm_ar",
        }
    }

    /// The operator called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    /// Whether ranks add up what each of them computed.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::GemmRs | Self::GemmAr)
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

/// How B lies in memory, rows of it contiguous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BLayout {
    /// `[K, N]`, as in `A · B`.
    #[default]
    Kn,
    /// `[N, K]`, as a linear layer keeps its weight.
    Nk,
}

impl BLayout {
    /// `kn` or `nk`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kn => "kn",
            Self::Nk => "nk",
        }
    }
}

impl fmt::Display for BLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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

/// Rows and columns of C that one CTA computes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tile {
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
}

/// A function of each element, in fp32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x`
    #[default]
    None,
    /// `max(x, 0)`
    Relu,
    /// `x Φ(x)`, Φ by its approximation with an absolute error of 1e-7.
    Gelu,
    /// `x σ(2 √(2/π) (x + 0.044715 x³))`, usually written with tanh.
    GeluTanh,
    /// `x σ(x)`
    Silu,
}

impl Activation {
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Relu,
        Self::Gelu,
        Self::GeluTanh,
        Self::Silu,
    ];

    /// `none`, `relu`, `gelu`, `gelu_tanh` or `silu`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
            Self::Silu => "silu",
        }
    }
}

impl fmt::Display for Activation {
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
}

impl Dtype {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Bf16, Self::Fp32];

    /// `bf16` or `fp32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp32 => "fp32",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bf16 => 2,
            Self::Fp32 => 4,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What becomes of the sum before it is C: `C = activation(sum + bias) + residual`, once, after the whole sum over K and
/// over ranks, in fp32, then rounded once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Epilogue {
    /// Whether a bf16 `bias[N]`, of this rank's columns, is added. Operators that reduce add it once, not once a rank:
    /// all ranks pass the same.
    pub bias: bool,
    /// Whether a bf16 `residual`, with the rows and columns of this rank's C, is added. `gemm_ar`: all ranks pass the
    /// same; of each row perhaps only one rank's is read.
    pub residual: bool,
    /// What is applied between the two.
    pub activation: Activation,
    /// Elements of C.
    pub output: Dtype,
}

impl Epilogue {
    /// What is computed of `sum`, as in `gelu(sum + bias) + residual`; the sum itself if nothing else is.
    #[must_use]
    pub fn formula(&self, sum: &str) -> String {
        let biased = match self.bias {
            true => format!("{sum} + bias"),
            false => sum.to_owned(),
        };
        let activated = match self.activation {
            Activation::None => biased,
            activation => format!("{activation}({biased})"),
        };
        match self.residual {
            true => format!("{activated} + residual"),
            false => activated,
        }
    }

    /// What a kernel's name says of it, as in `_bias_gelu_fp32`; nothing of the usual.
    #[must_use]
    pub fn suffix(&self) -> String {
        let parts = [
            (self.bias, "bias"),
            (self.activation != Activation::None, self.activation.name()),
            (self.residual, "residual"),
            (self.output != Dtype::Bf16, self.output.name()),
        ];
        let given = parts.into_iter().filter(|(given, _)| *given);
        given.map(|(_, name)| format!("_{name}")).collect()
    }
}

/// Choices of the plan that a person may fix; what is `None` the planner chooses by its cost model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Rows of a tile: 64 or 128.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile_m: Option<u32>,
    /// Columns of a tile: 64, 128 or 256.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile_n: Option<u32>,
    /// Stages of the shared-memory ring between the loader and the tensor cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
    /// What moves bytes to the peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
    /// `sm_push`: CTAs that only communicate; 0 = one warp of every CTA pushes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm_ctas: Option<u32>,
    /// `sm_push`: parts of K that arrive, and are waited for, one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k_slices: Option<u32>,
    /// Rows of a shard that arrive under one flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk_rows: Option<u32>,
    /// Row tiles that are computed together, so that their B tiles stay in L2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_m: Option<u32>,
    /// Operators that reduce: tiles of each owner in a round; own tiles come a round later than the others'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_tiles: Option<u32>,
    /// Operators that reduce: 1 = parts of C go from registers to registers, for few rows; 2 = to owners of tiles, who
    /// add them up, and for `gemm_ar` send the result to all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shots: Option<u32>,
}

/// A kernel as a person asks for it. Shapes are those of `op` on [`Op`]; row-major bf16 in, and out unless the
/// epilogue says otherwise, fp32 accumulate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelConfig {
    /// What to call it in listings; the kernel's own id if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The operator.
    pub op: Op,
    /// Ranks, one GPU each, of one node: 1, 2, 4 or 8.
    pub world: u32,
    /// Rows of C, over all ranks.
    pub m: Dim,
    /// Columns of this rank's B and C.
    pub n: Dim,
    /// The contracted dimension, of this rank's A and B.
    pub k: Dim,
    /// How B lies in memory.
    #[serde(default)]
    pub b_layout: BLayout,
    /// What becomes of the sum before it is C.
    #[serde(default)]
    pub epilogue: Epilogue,
    /// Choices taken from the planner.
    #[serde(default)]
    pub tuning: Tuning,
}
