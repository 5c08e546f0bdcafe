//! [`Dim`]: a size that is known when a kernel is declared, or given later.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A dimension: known when the kernel is declared, given when it is prepared, or given at each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    /// Known now.
    Static(u64),
    /// Given when the kernel is prepared, which specialises it. Written `"dynamic"`.
    Dynamic(DynamicWord),
    /// Given at each call. A dynamic dimension becomes this when the kernel is prepared, if the operator can take it at
    /// run time.
    #[serde(skip_deserializing)]
    UpTo {
        /// The most that a call may have.
        most: u64,
    },
}

/// The word `"dynamic"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DynamicWord {
    /// `"dynamic"`
    Dynamic,
}

impl Dim {
    /// A dimension that is given when the kernel is prepared.
    pub const DYNAMIC: Self = Self::Dynamic(DynamicWord::Dynamic);

    /// The size, or the most that a call may have, if it is known.
    #[must_use]
    pub const fn fixed(self) -> Option<u64> {
        match self {
            Self::Static(size) | Self::UpTo { most: size } => Some(size),
            Self::Dynamic(_) => None,
        }
    }

    /// Whether each call gives the size.
    #[must_use]
    pub const fn is_given_at_run_time(self) -> bool {
        matches!(self, Self::UpTo { .. })
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(size) => write!(f, "{size}"),
            Self::Dynamic(_) => f.write_str("dynamic"),
            Self::UpTo { most } => write!(f, "up to {most}"),
        }
    }
}
