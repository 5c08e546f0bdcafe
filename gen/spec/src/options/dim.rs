//! [`Dim`]: a size that is known when a kernel is declared, or given later.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A dimension: known when the kernel is declared, given when it is prepared, or given at each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A size that is known at the declaration.
    Static(u64),
    /// Given when the kernel is prepared, which specialises it. Written `dynamic`.
    Dynamic,
    /// Given at each call. A dynamic dimension becomes this when the kernel is prepared, if the operator can take it at
    /// run time. The number is the most that a call may have. Written `..=1024`.
    UpTo(u64),
}

impl Dim {
    /// The size, or the largest size of a call; `None` if it is not known.
    #[must_use]
    pub const fn fixed(self) -> Option<u64> {
        match self {
            Self::Static(size) | Self::UpTo(size) => Some(size),
            Self::Dynamic => None,
        }
    }

    /// The dimension in a kernel that is prepared for `size`, where `is_at_run_time` says whether the operator can take
    /// the size at each call. If so, `size` is the largest size of a call.
    #[must_use]
    pub const fn prepared(self, size: u64, is_at_run_time: bool) -> Self {
        match (self, is_at_run_time) {
            (Self::UpTo(_), _) | (Self::Dynamic, true) => Self::UpTo(size),
            (Self::Static(_), _) | (Self::Dynamic, false) => Self::Static(size),
        }
    }

    /// Whether each call gives the size.
    #[must_use]
    pub const fn is_given_at_run_time(self) -> bool {
        matches!(self, Self::UpTo(_))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(size) => write!(f, "{size}"),
            Self::Dynamic => f.write_str("dynamic"),
            Self::UpTo(most) => write!(f, "..={most}"),
        }
    }
}

impl FromStr for Dim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let refused =
                |_| "write an integer, as a plain number, `dynamic`, or `..=1024`".to_owned();
            text.parse().map_err(refused)
        };
        match (text, text.strip_prefix("..=")) {
            ("dynamic", _) => Ok(Self::Dynamic),
            (_, Some(most)) => number(most).map(Self::UpTo),
            _ => number(text).map(Self::Static),
        }
    }
}

impl Serialize for Dim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Static(size) => serializer.serialize_u64(*size),
            _ => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Size(u64),
            Word(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Size(size) => Ok(Self::Static(size)),
            Written::Word(word) => word.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dimension_is_read_as_it_is_written() {
        for dim in [Dim::Static(7), Dim::Dynamic, Dim::UpTo(1024)] {
            assert_eq!(dim.to_string().parse(), Ok(dim));
        }
        for text in ["", "..=", "1024..", "-1", "Dynamic", "..=x"] {
            assert!(text.parse::<Dim>().is_err(), "{text}");
        }
    }
}
