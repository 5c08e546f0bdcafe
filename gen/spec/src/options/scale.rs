//! A factor that the user gives as a number.

use super::option_type::OptionType;
use super::value::Value;
use super::values::Values;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A factor of scores: in attention of scores before the softmax, in a router of the weights of experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Option<f32>", into = "Option<f32>")]
pub struct Scale {
    bits: Option<u32>,
}

impl Scale {
    /// A factor that the user gives.
    #[must_use]
    pub const fn new(value: f32) -> Self {
        Self {
            bits: Some(value.to_bits()),
        }
    }

    /// The factor that the user gives; `None` if attention uses 1/√D.
    #[must_use]
    pub const fn fixed(self) -> Option<f32> {
        match self.bits {
            Some(bits) => Some(f32::from_bits(bits)),
            None => None,
        }
    }

    /// The factor of attention with heads of `head_dim` elements.
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

    fn read(value: &Value) -> Result<Self, String> {
        value.number().map(Self::new)
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
