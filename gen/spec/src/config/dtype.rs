//! [`Dtype`]: types of elements.

use serde::{Deserialize, Serialize};
use std::fmt;

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
