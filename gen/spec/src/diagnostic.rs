//! Mistakes in a configuration: all mistakes at once, each with its field, value, limit and a remedy.

use std::fmt;

pub use crate::field::Field;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The field that has the mistake.
    pub field: Field,
    /// The value, the limit, and the origin of the limit.
    pub reason: String,
    /// A remedy that would work.
    pub help: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.field, self.reason, self.help)
    }
}

/// All mistakes found; never empty when returned as an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// Records one mistake, once.
    pub fn push(&mut self, field: Field, reason: impl Into<String>, help: impl Into<String>) {
        let diagnostic = Diagnostic {
            field,
            reason: reason.into(),
            help: help.into(),
        };
        if !self.0.contains(&diagnostic) {
            self.0.push(diagnostic);
        }
    }

    /// Records a mistake unless `ok`.
    pub fn require(
        &mut self,
        ok: bool,
        field: Field,
        reason: impl FnOnce() -> String,
        help: impl Into<String>,
    ) {
        if !ok {
            self.push(field, reason(), help);
        }
    }

    /// `value` if no mistake was recorded, or else all recorded mistakes.
    ///
    /// # Errors
    /// The recorded diagnostics.
    pub fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }

    /// The diagnostics, in the order in which they were found.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    /// Whether no mistake was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of recorded mistakes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, v) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{v}")?;
        }
        Ok(())
    }
}
