//! The normalisation of the rows of a result.

use super::option_type::{OptionType, choices};
use super::value::Value;
use super::values::Values;
use crate::diagnostic::Diagnostics;
use crate::field::Field;
use serde::{Deserialize, Serialize};
use std::fmt;

choices! {
    /// How the rows of a result are normalised.
    #[derive(Default)]
    pub enum Norm {
        /// Rows are not normalised.
        #[default]
        None = "none",
        /// RMSNorm: `z / √(mean(z²) + eps) · weight`, where z is a row and `weight` has an element for each column.
        Rms = "rms",
    }
}

/// The number `eps` that a norm adds to the mean of squares. It is above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "f32", into = "f32")]
pub struct Eps {
    bits: u32,
}

impl Eps {
    /// The `eps` with this value.
    #[must_use]
    pub const fn new(value: f32) -> Self {
        Self {
            bits: value.to_bits(),
        }
    }

    /// The number.
    #[must_use]
    pub const fn value(self) -> f32 {
        f32::from_bits(self.bits)
    }

    /// Records a mistake if no kernel can use the number. Kernels treat subnormal numbers as 0.
    pub(crate) fn check(self, found: &mut Diagnostics) {
        let value = self.value();
        found.require(
            value.is_normal() && value > 0.0,
            Field::EPS,
            || format!("{value} is not a normal number above 0"),
            "use the number of the model, such as 1e-5 or 1e-6",
        );
    }
}

impl Default for Eps {
    fn default() -> Self {
        Self::new(1e-6)
    }
}

impl From<f32> for Eps {
    fn from(value: f32) -> Self {
        Self::new(value)
    }
}

impl From<Eps> for f32 {
    fn from(eps: Eps) -> Self {
        eps.value()
    }
}

impl fmt::Display for Eps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:e}", self.value())
    }
}

impl OptionType for Eps {
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
