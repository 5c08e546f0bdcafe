//! Names of options.

use std::fmt;

/// An option of [`KernelConfig`](crate::KernelConfig), by the one name it has in TOML, in `#[fused_kernel(...)]`, as a
/// flag (`--tile-m`) and in messages. The constants are declared beside the structs that have the options.
///
/// This crate knows fields, never files or tokens: the macro and the command line map a field to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Field(&'static str);

impl Field {
    /// `op`
    pub const OP: Self = Self::new("op");

    pub(crate) const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The field's name, as in TOML.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
