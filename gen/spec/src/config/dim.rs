//! [`Dim`]: a size that is known when a kernel is declared, or given later.

use serde::{Deserialize, Serialize};
use std::fmt;

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
