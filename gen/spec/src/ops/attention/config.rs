//! What a person writes of an attention operator: `ring_attention`.

use crate::config::op::operators;
use crate::config::option::{OptionSpec, options};
use crate::config::option_type::{OptionType, choices};
use crate::config::values::{Limits, Values, Written};
use crate::config::{Dim, Field};
use crate::diagnostic::Diagnostics;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Heads over all batches: tiles of queries are counted in 32 bits.
pub const MAX_HEADS: u64 = 1 << 20;

options! {
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
        op: AttentionOp, sizes: AttentionShape {
            /// Sequences.
            batch as BATCH,
            /// Rows of each sequence, over all ranks.
            seq as SEQ,
            /// Heads of Q and O.
            heads as HEADS,
            /// Heads of K and V, a divisor of `heads`.
            ///
            /// With as many as `heads`, every head has K and V of its own; with 1, all share them.
            kv_heads as KV_HEADS,
            /// Elements of a row of a head: 64 or 128.
            head_dim as HEAD_DIM,
        }
        options {
            /// How Q, K, V and O lie in memory: as `[B, S, H, D]` (bshd), or as `[B, H, S, D]` (bhsd).
            #[serde(default)]
            layout: Layout as LAYOUT,
            /// Whether a row attends to no later rows.
            #[serde(default)]
            causal: bool as CAUSAL,
            /// Which rows of the sequence a rank has: of W chunks number r (contiguous), or of 2W chunks number r and then
            /// number 2W - 1 - r (zigzag).
            ///
            /// With a mask, every rank has as much to do only with `zigzag`.
            #[serde(default)]
            placement: Placement as PLACEMENT,
            /// What scores are multiplied by before the softmax, a number above 0.
            #[serde(default)]
            scale: Scale as SCALE,
        }
        groups {
            /// Choices taken from the planner.
            #[serde(default)]
            tuning: AttentionTuning,
        }
    }

    /// Choices taken from the planner of attention operators. What is absent, the planner chooses.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct AttentionTuning: Default {
        options {
            /// CTAs that send K and V: before they compute, on several nodes meanwhile.
            #[limits(Limits::Range(1, 128))]
            #[serde(skip_serializing_if = "Option::is_none")]
            comm_ctas: Option<u32> as =COMM_CTAS,
            /// Heads of K and V, over all batches, that a rank has room for, of each peer.
            #[limits(Limits::Range(1, MAX_HEADS as u32))]
            #[serde(skip_serializing_if = "Option::is_none")]
            kv_slots: Option<u32> as KV_SLOTS,
        }
    }
}

operators!(AttentionOp: RingAttention);

choices! {
    /// How Q, K, V and O lie in memory: B batches, S rows of the sequence, H heads, D elements.
    #[derive(Default)]
    pub enum Layout {
        /// `[B, S, H, D]`: rows of all heads, which may lie within longer rows.
        #[default]
        Bshd = "bshd",
        /// `[B, H, S, D]`
        Bhsd = "bhsd",
    }
}

choices! {
    /// Which rows of the sequence a rank has, of W ranks.
    #[derive(Default)]
    pub enum Placement {
        /// Of W chunks of ⌈S/W⌉ rows, rank r has chunk r.
        #[default]
        Contiguous = "contiguous",
        /// Of 2W chunks of ⌈S/2W⌉ rows, rank r has chunk r and then chunk 2W - 1 - r: causal attention is as much work for
        /// every rank.
        Zigzag = "zigzag",
    }
}

impl Placement {
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

impl OptionType for Scale {
    fn values() -> Values {
        Values::Number
    }

    fn read(written: &dyn Written) -> Result<Self, String> {
        written.number().map(Self::new)
    }

    fn literal(&self) -> String {
        match self.fixed() {
            Some(value) => format!("::mkernel::spec::Scale::new({value:?}f32)"),
            None => "::mkernel::spec::Scale::default()".to_owned(),
        }
    }

    fn word(&self) -> Option<String> {
        Some(self.to_string())
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

impl AttentionShape {
    /// Rows of a chunk of the sequence; the last ones perhaps fewer.
    #[must_use]
    pub const fn chunk_rows(self, world: u32, placement: Placement) -> u64 {
        self.seq
            .div_ceil(world as u64 * placement.segments() as u64)
    }
}
