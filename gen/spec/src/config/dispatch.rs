//! What a person writes of the first half of a mixture of experts: `dispatch_gemm`.

use super::{BLayout, Dim, Op, dimensions};
use crate::violation::Field;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which operator that dispatches; see [`Op`] for what each computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchOp {
    /// [`Op::DispatchGemm`]
    DispatchGemm,
}

impl fmt::Display for DispatchOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Op::DispatchGemm.fmt(f)
    }
}

/// Dispatch of tokens to experts, and their first product: bf16, fp32 accumulate. Rank r has experts `r·E/W ..`.
///
/// ```
/// use mkernel_spec::{Dim, DispatchConfig, DispatchOp};
///
/// let up = DispatchConfig {
///     experts: Dim::Static(256),
///     top_k: Dim::Static(8),
///     hidden: Dim::Static(7168),
///     intermediate: Dim::Static(2048),
///     swiglu: true,
///     ..DispatchConfig::new(DispatchOp::DispatchGemm)
/// };
/// assert_eq!(up.max_tokens, Dim::DYNAMIC);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DispatchConfig {
    /// The operator.
    pub op: DispatchOp,
    /// Experts over all ranks.
    pub experts: Dim,
    /// Experts of each token.
    pub top_k: Dim,
    /// The most tokens that a rank can have; how many it has, each call says.
    pub max_tokens: Dim,
    /// Elements of a token.
    pub hidden: Dim,
    /// Columns of the result.
    pub intermediate: Dim,
    /// How the weight of an expert lies in memory: `[hidden, columns]` (kn) or `[columns, hidden]` (nk).
    #[serde(default)]
    pub b_layout: BLayout,
    /// Whether an expert's weight is a gate and an up projection, as many columns each, of which `silu(gate) · up` is
    /// the result.
    #[serde(default)]
    pub swiglu: bool,
    /// The most rows that a rank's result can have; as many as tokens can make if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u32>,
    /// Rows of a tile, taken from the planner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tile_m: Option<u32>,
    /// Columns of a tile, taken from the planner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tile_n: Option<u32>,
    /// CTAs that communicate before they compute, taken from the planner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm_ctas: Option<u32>,
}

impl DispatchConfig {
    /// The fields that a person may write of it.
    pub const FIELDS: [Field; 11] = [
        Field::Experts,
        Field::TopK,
        Field::MaxTokens,
        Field::Hidden,
        Field::Intermediate,
        Field::BLayout,
        Field::Swiglu,
        Field::MaxRows,
        Field::TileM,
        Field::TileN,
        Field::CommCtas,
    ];

    /// All sizes dynamic, weights as `[hidden, columns]`, a plain product, everything else left to the planner.
    #[must_use]
    pub fn new(op: DispatchOp) -> Self {
        Self {
            op,
            experts: Dim::DYNAMIC,
            top_k: Dim::DYNAMIC,
            max_tokens: Dim::DYNAMIC,
            hidden: Dim::DYNAMIC,
            intermediate: Dim::DYNAMIC,
            b_layout: BLayout::default(),
            swiglu: false,
            max_rows: None,
            tile_m: None,
            tile_n: None,
            comm_ctas: None,
        }
    }
}

/// Sizes of [`DispatchConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DispatchShape {
    /// Experts over all ranks.
    pub experts: u64,
    /// Experts of each token.
    pub top_k: u64,
    /// The most tokens of a rank.
    pub max_tokens: u64,
    /// Elements of a token.
    pub hidden: u64,
    /// Columns of the result.
    pub intermediate: u64,
}

dimensions!(
    DispatchConfig, DispatchShape:
    Experts experts, TopK top_k, MaxTokens max_tokens, Hidden hidden, Intermediate intermediate
);

/// The most rows that all ranks' tokens can make on one rank, of `experts` over all of them.
#[must_use]
pub const fn all_rows(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> u64 {
    let here = experts / world as u64;
    let each = if top_k < here { top_k } else { here };
    max_tokens.saturating_mul(each).saturating_mul(world as u64)
}
