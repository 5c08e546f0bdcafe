//! Sizes and offsets of a struct that a device header defines too.

use serde::Serialize;

/// A struct that a device header defines too: the rendered kernel asserts size and offsets.
#[derive(Clone, Debug, Serialize)]
pub struct StructLayout {
    /// The name of the struct in CUDA.
    pub name: &'static str,
    /// The size of the struct, in bytes.
    pub size_bytes: usize,
    /// The names of the fields, and their offsets in bytes.
    pub fields: Vec<(&'static str, usize)>,
}

/// The [`StructLayout`] of a struct: its name, and all its fields.
macro_rules! layout {
    ($t:ident: $($f:ident),+) => {
        $crate::abi::StructLayout {
            name: stringify!($t),
            size_bytes: std::mem::size_of::<$t>(),
            fields: vec![$((stringify!($f), std::mem::offset_of!($t, $f))),+],
        }
    };
}
pub(crate) use layout;
