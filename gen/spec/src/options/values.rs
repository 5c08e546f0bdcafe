//! The values that options take, and their limits.

use crate::diagnostic::Diagnostics;
use crate::field::Field;

/// The values that an option takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// An integer, `dynamic`, or `..=8192`.
    ///
    /// With `dynamic`, `prepare` takes the size. `..=8192` fixes the largest number of rows, and each call gives its
    /// number of rows. Only `m` and `seq` may have this form.
    Size,
    /// An integer, perhaps within limits.
    Count(Option<Limits>),
    /// A number that may be a fraction.
    Number,
    /// `true` or `false`.
    Switch,
    /// An identifier.
    Name,
    /// One of these words.
    Words(Vec<&'static str>),
}

/// The possible counts, if no other rule decides which counts are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limits {
    /// All counts from the first number to the second number.
    Range(u32, u32),
    /// One of these counts, and the reason.
    OneOf(&'static [u32], &'static str),
}

impl Limits {
    /// Records a mistake if `value` is not possible.
    pub(crate) fn check(self, field: Field, value: u32, found: &mut Diagnostics) {
        let (ok, reason, help) = match self {
            Self::Range(low, high) => (
                (low..=high).contains(&value),
                format!("{value} is not in {low}..={high}"),
                "use a value in that range".to_owned(),
            ),
            Self::OneOf(allowed, why) => (
                allowed.contains(&value),
                format!("{value} is not possible ({why})"),
                format!("use one of {allowed:?}"),
            ),
        };
        let help = format!("{help}, or leave it to the planner");
        found.require(ok, field, || reason, help);
    }
}
