//! What a person writes of an attention operator: `ring_attention`.

use super::{Dim, Op, dimensions};
use crate::violation::Field;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which attention operator; see [`Op`] for what each computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionOp {
    /// [`Op::RingAttention`]
    RingAttention,
}

impl fmt::Display for AttentionOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Op::RingAttention.fmt(f)
    }
}

/// How Q, K, V and O lie in memory: B batches, S rows of the sequence, H heads, D elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// `[B, S, H, D]`: rows of all heads, which may lie within longer rows.
    #[default]
    Bshd,
    /// `[B, H, S, D]`
    Bhsd,
}

impl Layout {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Bshd, Self::Bhsd];

    /// `bshd` or `bhsd`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bshd => "bshd",
            Self::Bhsd => "bhsd",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which rows of the sequence a rank has, of W ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Of W chunks of ⌈S/W⌉ rows, rank r has chunk r.
    #[default]
    Contiguous,
    /// Of 2W chunks of ⌈S/2W⌉ rows, rank r has chunk r and then chunk 2W - 1 - r: causal attention is as much work for
    /// every rank.
    Zigzag,
}

impl Placement {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Contiguous, Self::Zigzag];

    /// `contiguous` or `zigzag`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Zigzag => "zigzag",
        }
    }

    /// Chunks of a rank.
    #[must_use]
    pub const fn segments(self) -> u32 {
        match self {
            Self::Contiguous => 1,
            Self::Zigzag => 2,
        }
    }

    /// Which chunk of the sequence is segment `segment` of `rank`'s.
    #[must_use]
    pub const fn chunk_of(self, world: u32, rank: u32, segment: u32) -> u32 {
        match segment {
            0 => rank,
            _ => 2 * world - 1 - rank,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What scores are multiplied by before the softmax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Option<f32>", into = "Option<f32>")]
pub struct Scale {
    bits: Option<u32>,
}

impl Scale {
    /// This number, instead of 1/√D.
    #[must_use]
    pub const fn new(value: f32) -> Self {
        Self {
            bits: Some(value.to_bits()),
        }
    }

    /// The number, if it is not 1/√D.
    #[must_use]
    pub const fn fixed(self) -> Option<f32> {
        match self.bits {
            Some(bits) => Some(f32::from_bits(bits)),
            None => None,
        }
    }

    /// The factor for heads of `head_dim` elements.
    #[must_use]
    pub fn of(self, head_dim: u64) -> f64 {
        self.fixed()
            .map_or_else(|| 1.0 / (head_dim as f64).sqrt(), f64::from)
    }
}

impl From<Option<f32>> for Scale {
    fn from(value: Option<f32>) -> Self {
        value.map_or_else(Self::default, Self::new)
    }
}

impl From<Scale> for Option<f32> {
    fn from(scale: Scale) -> Self {
        scale.fixed()
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fixed() {
            Some(value) => value.fmt(f),
            None => f.write_str("1/√D"),
        }
    }
}

/// Choices taken from the planner of attention operators. What is absent, the planner chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttentionTuning {
    /// CTAs that send K and V: before they compute, on several nodes meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm_ctas: Option<u32>,
    /// Heads of K and V that a rank has room for, of each peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_slots: Option<u32>,
}

/// An attention operator: bf16 in and out, fp32 softmax.
///
/// ```
/// use mkernel_spec::{AttentionConfig, AttentionOp, Dim, Placement};
///
/// let attention = AttentionConfig {
///     batch: Dim::Static(1),
///     heads: Dim::Static(64),
///     kv_heads: Dim::Static(8),
///     head_dim: Dim::Static(128),
///     causal: true,
///     placement: Placement::Zigzag,
///     ..AttentionConfig::new(AttentionOp::RingAttention)
/// };
/// assert_eq!(attention.seq, Dim::DYNAMIC);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionConfig {
    /// The operator.
    pub op: AttentionOp,
    /// Sequences.
    pub batch: Dim,
    /// Rows of each, over all ranks.
    pub seq: Dim,
    /// Heads of Q and O.
    pub heads: Dim,
    /// Heads of K and V: each serves as many of Q's as the next.
    pub kv_heads: Dim,
    /// Elements of a row of a head: 64 or 128.
    pub head_dim: Dim,
    /// How Q, K, V and O lie in memory.
    #[serde(default)]
    pub layout: Layout,
    /// Whether a row attends to no later rows.
    #[serde(default)]
    pub causal: bool,
    /// Which rows of the sequence a rank has.
    #[serde(default)]
    pub placement: Placement,
    /// What scores are multiplied by before the softmax.
    #[serde(default)]
    pub scale: Scale,
    /// Choices taken from the planner.
    #[serde(default)]
    pub tuning: AttentionTuning,
}

impl AttentionConfig {
    /// The fields that a person may write of it.
    pub const FIELDS: [Field; 11] = [
        Field::Batch,
        Field::Seq,
        Field::Heads,
        Field::KvHeads,
        Field::HeadDim,
        Field::Layout,
        Field::Causal,
        Field::Placement,
        Field::Scale,
        Field::CommCtas,
        Field::KvSlots,
    ];

    /// All sizes dynamic, `[B, S, H, D]`, every row attends to all, contiguous shards, scores divided by √D.
    #[must_use]
    pub fn new(op: AttentionOp) -> Self {
        Self {
            op,
            batch: Dim::DYNAMIC,
            seq: Dim::DYNAMIC,
            heads: Dim::DYNAMIC,
            kv_heads: Dim::DYNAMIC,
            head_dim: Dim::DYNAMIC,
            layout: Layout::default(),
            causal: false,
            placement: Placement::default(),
            scale: Scale::default(),
            tuning: AttentionTuning::default(),
        }
    }
}

/// Sizes of an attention operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: u64,
    /// Rows of each, over all ranks.
    pub seq: u64,
    /// Heads of Q and O.
    pub heads: u64,
    /// Heads of K and V.
    pub kv_heads: u64,
    /// Elements of a row of a head.
    pub head_dim: u64,
}

impl AttentionShape {
    /// Rows of a chunk of the sequence; the last ones perhaps fewer.
    #[must_use]
    pub const fn chunk_rows(self, world: u32, placement: Placement) -> u64 {
        self.seq
            .div_ceil(world as u64 * placement.segments() as u64)
    }
}

dimensions!(AttentionConfig, AttentionShape: Batch batch, Seq seq, Heads heads, KvHeads kv_heads, HeadDim head_dim);
