//! What a person writes of a GEMM operator: `ag_gemm`, `gemm_rs`, `gemm_ar`.

use super::option_type::choices;
use super::{Dtype, Epilogue, GemmShape, Op};
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

choices! {
    /// How B lies in memory, rows of it contiguous.
    #[derive(Default)]
    pub enum BLayout {
        /// `[K, N]`, as in `A · B`.
        #[default]
        Kn = "kn",
        /// `[N, K]`, as a linear layer keeps its weight.
        Nk = "nk",
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

choices! {
    /// A function of each element, in fp32.
    #[derive(Default)]
    pub enum Activation {
        /// `x`
        #[default]
        None = "none",
        /// `max(x, 0)`
        Relu = "relu",
        /// `x Φ(x)`, Φ by its approximation with an absolute error of 1e-7.
        Gelu = "gelu",
        /// `x σ(2 √(2/π) (x + 0.044715 x³))`, usually written with tanh.
        GeluTanh = "gelu_tanh",
        /// `x σ(x)`
        Silu = "silu",
    }
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

impl GemmShape {
    /// Rows of a shard, ⌈M/W⌉: every rank but perhaps the last ones has as many.
    #[must_use]
    pub const fn shard_rows(self, world: u32) -> u64 {
        self.m.div_ceil(world as u64)
    }
}
