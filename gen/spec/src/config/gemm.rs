//! What a person writes of a GEMM operator: `ag_gemm`, `gemm_rs`, `gemm_ar`.

use super::{Dim, Dtype, Op, Transfer, dimensions};
use crate::violation::Field;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which GEMM operator; see [`Op`] for what each computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GemmOp {
    /// [`Op::AgGemm`]
    AgGemm,
    /// [`Op::GemmRs`]
    GemmRs,
    /// [`Op::GemmAr`]
    GemmAr,
}

impl GemmOp {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::AgGemm, Self::GemmRs, Self::GemmAr];

    /// It among all operators.
    #[must_use]
    pub const fn op(self) -> Op {
        match self {
            Self::AgGemm => Op::AgGemm,
            Self::GemmRs => Op::GemmRs,
            Self::GemmAr => Op::GemmAr,
        }
    }

    /// The operator's name in every file, flag and symbol.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.op().name()
    }

    /// Whether ranks add up what each of them computed.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::GemmRs | Self::GemmAr)
    }
}

impl fmt::Display for GemmOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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

/// A GEMM operator. Shapes are those of `op` on [`Op`]; row-major bf16 in, and out unless the epilogue says otherwise,
/// fp32 accumulate.
///
/// ```
/// use mkernel_spec::{BLayout, Dim, GemmConfig, GemmOp};
///
/// let up = GemmConfig {
///     n: Dim::Static(1024),
///     k: Dim::Static(8192),
///     b_layout: BLayout::Nk,
///     ..GemmConfig::new(GemmOp::AgGemm)
/// };
/// assert_eq!(up.m, Dim::DYNAMIC);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemmConfig {
    /// The operator.
    pub op: GemmOp,
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

impl GemmConfig {
    /// The fields that a person may write of it.
    pub const FIELDS: [Field; 18] = [
        Field::M,
        Field::N,
        Field::K,
        Field::BLayout,
        Field::Bias,
        Field::Activation,
        Field::Residual,
        Field::Output,
        Field::TileM,
        Field::TileN,
        Field::Stages,
        Field::Transfer,
        Field::CommCtas,
        Field::KSlices,
        Field::ChunkRows,
        Field::GroupM,
        Field::RoundTiles,
        Field::Shots,
    ];

    /// All sizes dynamic, B as `[K, N]`, no epilogue, everything left to the planner.
    #[must_use]
    pub fn new(op: GemmOp) -> Self {
        Self {
            op,
            m: Dim::DYNAMIC,
            n: Dim::DYNAMIC,
            k: Dim::DYNAMIC,
            b_layout: BLayout::default(),
            epilogue: Epilogue::default(),
            tuning: Tuning::default(),
        }
    }
}

/// Sizes of a GEMM operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GemmShape {
    /// Rows of C, over all ranks.
    pub m: u64,
    /// Columns of this rank's B and C.
    pub n: u64,
    /// The contracted dimension.
    pub k: u64,
}

impl GemmShape {
    /// Rows of a shard, ⌈M/W⌉: every rank but perhaps the last ones has as many.
    #[must_use]
    pub const fn shard_rows(self, world: u32) -> u64 {
        self.m.div_ceil(world as u64)
    }
}

dimensions!(GemmConfig, GemmShape: M m, N n, K k);
