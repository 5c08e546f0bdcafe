//! What a person writes of an attention operator: `ring_attention`.

use super::option_type::choices;
use super::{AttentionShape, Op};
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
